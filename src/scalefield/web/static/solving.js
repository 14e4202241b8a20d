// Requests to the server after an edit: the map, the map to compare with, where to measure next.

import { $ } from "./dom.js";
import { depthAnchors } from "./geometry.js";
import { composeLogDepth, upsample } from "./maps.js";
import { showNext } from "./panel.js";
import { isAbort } from "./server.js";
import { LatestRequest } from "./solver.js";
import { countedFromOne, givenOf, hasScale, isGiven } from "./state.js";

/** The sizes in the order of the requests. Where a method has no preview, the server answers with the full result.
 *  @type {("preview" | "full")[]} */
const SIZES = ["preview", "full"];

/** @typedef {{anchors: object[], method: string, known: object[], fov_deg?: number}} Edit */
/** @typedef {{method: string, quick: boolean, loaded: import("./page.js").Loaded, items: import("./state.js").Anchor[],
 *    given: number[], edit: Edit}} Request */

export class Solving {
  /** @param {import("./page.js").Page} page */
  constructor(page) {
    this.page = page;
    this.solver = new LatestRequest(
      (/** @type {Request} */ request, signal) => this.solve(request, signal),
      (request) => page.views.showBusy(request),
    );
    this.comparer = new LatestRequest((/** @type {Request} */ request, signal) => this.solveOther(request, signal));
    this.suggester = new LatestRequest((/** @type {Request} */ request, signal) => this.suggest(request, signal));
    /** @type {any[]} */
    this.suggestions = [];
  }

  /** What is asked for the present work. @param {string} method @returns {Request} */
  requestFor(method) {
    const { work, fov, shown } = this.page,
      known = method === "field" ? givenOf(work) : [];
    const anchors = depthAnchors(shown.project).map(({ u, v, depth_m, sigma_m }) => ({
      u, v, depth_m, ...(sigma_m && { sigma_m }),
    }));
    const edit = { anchors, method, known, ...(fov && { fov_deg: fov.deg }) };
    const given = known.length ? work.measurements.filter(isGiven).map(({ id }) => id) : [];
    return { method, quick: this.page.methods[method].quick, loaded: shown, items: work.anchors, given, edit };
  }

  /** @param {Request} request @param {AbortSignal} signal */
  async solve(request, signal) {
    const { loaded } = request;
    try {
      for (const size of SIZES) {
        const result = await this.recover(request, size, signal);
        if (signal.aborted || this.page.loaded !== loaded || !hasScale(this.page.work, result.method)) return;
        loaded.result = result;
        loaded.abouts = null;
        this.page.views.showAll();
        this.page.askUnit();
        const shown = result.preview ? "preview" : "full";
        document.body.dataset.solved = `${result.method} ${request.items.length} ${shown}`;
        if (!result.preview || this.solver.waiting) return;
      }
    } catch (e) {
      if (!isAbort(e) && !signal.aborted) this.page.showError(countedFromOne(/** @type {Error} */ (e).message));
    }
  }

  /** @param {Request} request @param {AbortSignal} signal */
  async solveOther(request, signal) {
    const { loaded } = request;
    try {
      for (const size of SIZES) {
        const other = await this.recover(request, size, signal);
        if (signal.aborted || this.page.loaded !== loaded || loaded.project.settings.compare !== request.method) return;
        loaded.other = other;
        this.page.views.showAll();
        if (!other.preview || this.comparer.waiting) return;
      }
    } catch (e) {
      if (isAbort(e) || signal.aborted) return;
      this.page.change({ compare: "" });
      loaded.other = null;
      this.page.showError(countedFromOne(/** @type {Error} */ (e).message));
      this.page.views.showAll();
    }
  }

  /** @param {Request} request @param {"preview" | "full"} size @param {AbortSignal} signal
   *  @returns {Promise<import("./readings.js").Result>} */
  async recover({ method, items, given, edit, loaded }, size, signal) {
    const { header, maps } = await this.page.sessions.use(
      loaded.project, (id) => this.page.server.recover(id, { ...edit, size }, signal), signal,
    );
    const { session, logMde } = loaded,
      logScale = upsample(maps.log_scale, session);
    /** @type {Float32Array | null} */
    let stdLog = null;
    return {
      header, method, anchors: items, sent: edit, logScale, preview: header.size === "preview",
      known: new Map(given.map((id, i) => [id, header.known[i]])),
      index: new Map(items.map((a, i) => [a.id, i])),
      suspects: new Set(header.suspects), corroborated: new Set(header.corroborated),
      get stdLog() { // computed when it is first needed
        return maps.std_log ? (stdLog ??= upsample(maps.std_log, session)) : null;
      },
      logDepth: composeLogDepth(logMde, logScale, header.limits_m),
    };
  }

  /** Ask where to measure next, if that is to be shown. */
  wantNext() {
    if ($("next").checked) this.suggester.request(this.requestFor(this.page.info.method));
    else this.suggestions = [];
  }

  /** @param {Request} request @param {AbortSignal} signal */
  async suggest({ loaded, edit: { anchors } }, signal) {
    try {
      const found = await this.page.sessions.use(
        loaded.project, (id) => this.page.server.suggest(id, { anchors }, signal), signal,
      );
      if (this.page.loaded !== loaded || !$("next").checked) return;
      this.suggestions = found;
      this.page.stage.redraw();
      showNext(this.page);
    } catch (e) {
      if (!isAbort(e) && !signal.aborted) this.page.showError(/** @type {Error} */ (e).message);
    }
  }

  async loadBasis(/** @type {string} */ method) {
    const { shown: loaded } = this.page;
    if (loaded.basisWanted === method) return;
    loaded.basisWanted = method;
    try {
      const { header, maps } = await this.page.sessions.use(loaded.project, (id) =>
        this.page.server.packed(id, `basis?method=${method}`),
      );
      if (this.page.loaded !== loaded) return;
      loaded.basis = { method, revision: header.revision, ...maps.basis_maps };
      this.page.views.showView();
    } catch (e) {
      this.page.showError(/** @type {Error} */ (e).message);
    } finally {
      loaded.basisWanted = "";
    }
  }

  cancelSolve() {
    this.solver.cancel();
    const { loaded } = this.page;
    if (loaded?.result && loaded.result.method !== loaded.project.settings.method)
      this.page.change({ method: loaded.result.method });
    this.page.views.showAll();
  }
}
