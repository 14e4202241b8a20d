// What the server reads from its result at the photo's full resolution: measurements, and depth at single pixels.

import { isAbort } from "./server.js";
import { PLANES } from "./state.js";

/** @typedef {import("./state.js").Pixel} Pixel */
/** @typedef {import("./state.js").MeasureKind} MeasureKind */
/** @typedef {{kind: MeasureKind | "depth", points: Pixel[], name?: string,
 *    known?: import("./state.js").Known}} Shape */
/** A value with the bounds of its 90 % interval; null where it is not known.
 *  @typedef {{value: number | null, low: number | null, high: number | null, error?: string}} Estimate */

const MOST_KNOWN = 10000;
const REST_MS = 80; // the pointer rests on a pixel before its depth is asked for

/** @param {Shape} shape */
const keyOf = ({ kind, points }) => `${kind} ${points.map(({ u, v }) => `${u} ${v}`).join(" ")}`;
/** @param {Pixel} pixel @returns {Shape} */
const asShape = ({ u, v }) => ({ kind: "depth", points: [{ u, v }] });

export const LEAST_POINTS = { depth: 1, distance: 2, path: 2, height: 2, area: 3, level: 3, upright: 3 };

export class Measuring {
  /** @param {import("./page.js").Page} page */
  constructor(page) {
    this.page = page;
    /** @type {Map<string, Estimate>} of the present result */
    this.known = new Map();
    /** @type {Map<string, Estimate>} of the one before, shown until there are new ones */
    this.before = new Map();
    this.version = /** @type {unknown[]} */ ([]);
    this.controller = new AbortController();
    /** @type {Promise<void> | null} */
    this.running = null;
    this.again = false;
    /** @type {Pixel | null} where the pointer rests */
    this.rested = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
  }

  /** The estimate of a shape, as far as it has arrived. @param {Shape} shape */
  estimate(shape) {
    this.renew();
    if (!this.page.loaded?.result) return null;
    const key = keyOf(shape);
    return this.known.get(key) ?? this.before.get(key) ?? null;
  }

  /** Depth at a pixel of the photo, if the present result's has arrived. @param {Pixel} pixel */
  depthAt(pixel) {
    this.renew();
    return this.known.get(keyOf(asShape(pixel))) ?? null;
  }

  /** Start anew where the result, the field of view or the relative depth is another one. */
  renew() {
    const { loaded, fov } = this.page,
      { result } = loaded ?? {};
    const version = [
      loaded?.project.id, result?.anchors, result?.method, JSON.stringify(result?.sent.known), fov?.deg,
      loaded?.session.revision,
    ];
    if (version.every((value, i) => value === this.version[i])) return;
    this.before = version[0] === this.version[0] ? new Map([...this.before, ...this.known]) : new Map();
    if (this.before.size > 1000) this.before.clear();
    [this.version, this.known] = [version, new Map()];
    this.controller.abort();
    this.controller = new AbortController();
  }

  /** The pointer is at a pixel, whose depth is asked for once it rests. @param {Pixel | null} pixel */
  point(pixel) {
    clearTimeout(this.timer);
    this.rested = null;
    if (this.page.tools.pending) this.update();
    else if (pixel && this.page.loaded?.result?.method === "field") {
      this.timer = setTimeout(() => {
        this.rested = pixel;
        this.update();
      }, REST_MS);
    }
  }

  /** Ask for what is shown and not known; resolves when the answers are there. */
  async update() {
    this.again = true;
    this.running ??= this.run().finally(() => (this.running = null));
    return this.running;
  }

  async run() {
    while (this.again) {
      this.again = false;
      this.renew();
      if (this.known.size > MOST_KNOWN) this.known.clear();
      const shapes = this.wanted().filter((s) => !this.known.has(keyOf(s)));
      if (shapes.length) await this.ask(shapes);
    }
  }

  /** Measurements, the one that is drawn, the pixel of the card or under the pointer, and the profile.
   *  @returns {Shape[]} */
  wanted() {
    const { loaded, fov, stage, card, tools, work } = this.page;
    if (!loaded?.result) return [];
    /** @type {Shape[]} */
    const shapes = fov ? work.measurements.filter((m) => !PLANES.has(m.kind)) : [],
      { pending } = tools,
      pixel = card.pin ?? this.rested;
    if (pending && fov && !PLANES.has(pending.kind) && loaded.result.method === "field") {
      shapes.push({ ...pending, points: stage.cursor ? [...pending.points, stage.cursor] : pending.points });
    }
    if (pixel) shapes.push(asShape(pixel));
    if (loaded.result.method === "field") shapes.push(...tools.profilePixels().map(asShape));
    return shapes.filter((s) => s.points.length >= LEAST_POINTS[s.kind]);
  }

  /** @param {Shape[]} shapes */
  async ask(shapes) {
    const { page, known } = this, { signal } = this.controller, loaded = page.shown;
    const result = /** @type {import("./readings.js").Result} */ (loaded.result);
    const points = shapes.filter((s) => s.kind === "depth"), measurements = shapes.filter((s) => s.kind !== "depth");
    const body = {
      ...result.sent, points: points.map((s) => s.points[0]),
      measurements: measurements.map((s) => ({ kind: s.kind, points: s.points.map(({ u, v }) => ({ u, v })) })),
      ...(page.fov && { fov_deg: page.fov.deg }),
    };
    try {
      const answer = await page.sessions.use(loaded.project, (id) => page.server.measure(id, body, signal), signal);
      const { depth_m, low_m, high_m } = answer;
      points.forEach((s, i) => {
        known.set(keyOf(s), { value: depth_m[i], low: low_m?.[i] ?? null, high: high_m?.[i] ?? null });
      });
      measurements.forEach((s, i) => known.set(keyOf(s), answer.measurements[i]));
      if (known === this.known) page.estimated();
    } catch (e) {
      if (!isAbort(e) && !signal.aborted) page.showError(/** @type {Error} */ (e).message);
    }
  }
}
