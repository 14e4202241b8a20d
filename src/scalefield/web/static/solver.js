// Which request is under way: the last one wins, earlier ones are cancelled or replaced.

/** @typedef {{method: string, quick: boolean}} Wish */

/** Runs `work` for the newest wish. A quick one that is under way for the same method may end, and
 *  the newest of those that came meanwhile follows, so that dragging shows results as it goes; any
 *  other is aborted at once.
 *  @template {Wish} T */
export class LastWins {
  /** @param {(wish: T, signal: AbortSignal) => Promise<void>} work
   *  @param {(wish: T | null) => void} [onBusy] called with what is under way, or null */
  constructor(work, onBusy = () => {}) {
    this.work = work;
    this.onBusy = onBusy;
    /** @type {{wish: T, controller: AbortController} | null} */
    this.running = null;
    /** @type {T | null} */
    this.waiting = null;
  }

  /** @param {T} wish */
  request(wish) {
    const { running } = this;
    if (running && running.wish.method === wish.method && running.wish.quick && wish.quick) {
      this.waiting = wish;
      return;
    }
    this.cancel();
    this.start(wish);
  }

  /** Abort what is under way and forget what waits. */
  cancel() {
    const { running } = this;
    this.waiting = null;
    this.running = null;
    running?.controller.abort();
    if (running) this.onBusy(null);
  }

  /** @param {T} wish */
  async start(wish) {
    const controller = new AbortController();
    const mine = (this.running = { wish, controller });
    this.onBusy(wish);
    try {
      await this.work(wish, controller.signal);
    } finally {
      if (this.running === mine) {
        this.running = null;
        const next = this.waiting;
        this.waiting = null;
        if (next) this.start(next);
        else this.onBusy(null);
      }
    }
  }
}
