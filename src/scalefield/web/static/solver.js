// Which request is running: a newer one replaces or aborts the earlier ones.

/** @typedef {{method: string, quick: boolean}} SolveRequest */

/** Runs `work` for the latest request. If a quick request for the same method is running, it may end,
 *  and the latest of those that came in the meantime follows: dragging then shows results all the
 *  time. A running request of any other kind is aborted at once.
 *  @template {SolveRequest} T */
export class LatestRequest {
  /** @param {(request: T, signal: AbortSignal) => Promise<void>} work
   *  @param {(request: T | null) => void} [onBusy] called with the running request, or null */
  constructor(work, onBusy = () => {}) {
    this.work = work;
    this.onBusy = onBusy;
    /** @type {{request: T, controller: AbortController} | null} */
    this.running = null;
    /** @type {T | null} */
    this.waiting = null;
  }

  /** @param {T} request */
  request(request) {
    const { running } = this;
    if (running && running.request.method === request.method && running.request.quick && request.quick) {
      this.waiting = request;
      return;
    }
    this.cancel();
    this.start(request);
  }

  /** Abort the running request and drop the waiting one. */
  cancel() {
    const { running } = this;
    this.waiting = null;
    this.running = null;
    running?.controller.abort();
    if (running) this.onBusy(null);
  }

  /** @param {T} request */
  async start(request) {
    const controller = new AbortController();
    const mine = (this.running = { request, controller });
    this.onBusy(request);
    try {
      await this.work(request, controller.signal);
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
