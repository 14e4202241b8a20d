// Requests to the server after an edit: the map, the map to compare with, where to measure next.

import { $ } from "./dom.js";
import { composeLogDepth, upsample } from "./maps.js";
import { showNext } from "./panel.js";
import { isAbort } from "./server.js";
import { LatestRequest } from "./solver.js";
import { countedFromOne } from "./state.js";

/** The sizes in the order of the requests. Where a method has no preview, the server answers with the full result.
 *  @type {("preview" | "full")[]} */
const SIZES = ["preview", "full"];

export class Solving {
  /** @param {import("./page.js").Page} page */
  constructor(page) {
    this.page = page;
    this.solver = new LatestRequest(
      (request, signal) => this.solve(request, signal),
      (request) => page.views.showBusy(request),
    );
    this.comparer = new LatestRequest((request, signal) => this.solveOther(request, signal));
    this.suggester = new LatestRequest((request, signal) => this.suggest(request, signal));
    /** @type {any[]} */
    this.suggestions = [];
  }

  /** @param {string} method */
  requestFor(method) {
    const { anchors } = this.page.work;
    return {
      method, quick: this.page.methods[method].quick, loaded: this.page.loaded, items: anchors,
      anchors: anchors.map(({ u, v, depth_m, sigma_m }) => (sigma_m ? { u, v, depth_m, sigma_m } : { u, v, depth_m })),
    };
  }

  /** @param {any} request @param {AbortSignal} signal */
  async solve(request, signal) {
    const { loaded } = request;
    try {
      for (const size of SIZES) {
        const result = await this.recover(request, size, signal);
        if (signal.aborted || this.page.loaded !== loaded || !this.page.work.anchors.length) return;
        loaded.result = result;
        loaded.abouts = null;
        this.page.views.showAll();
        this.page.askUnit();
        const shown = result.preview ? "preview" : "full";
        document.body.dataset.solved = `${result.method} ${request.anchors.length} ${shown}`;
        if (!result.preview || this.solver.waiting) return;
      }
    } catch (e) {
      if (!isAbort(e) && !signal.aborted) this.page.showError(countedFromOne(/** @type {Error} */ (e).message));
    }
  }

  /** @param {any} request @param {AbortSignal} signal */
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

  /** @param {any} request @param {"preview" | "full"} size @param {AbortSignal} signal
   *  @returns {Promise<import("./readings.js").Result>} */
  async recover({ method, items, anchors, loaded }, size, signal) {
    const { header, maps } = await this.page.sessions.use(
      loaded.project,
      (id) => this.page.server.recover(id, { anchors, method, size }, signal),
      signal,
    );
    const { session, logMde } = loaded,
      logScale = upsample(maps.log_scale, session);
    /** @type {Float32Array | null} */
    let stdLog = null;
    return {
      header, method, anchors: items, sent: anchors, logScale, preview: header.size === "preview",
      index: new Map(items.map((/** @type {any} */ a, /** @type {number} */ i) => [a.id, i])),
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

  /** @param {any} request @param {AbortSignal} signal */
  async suggest({ loaded, anchors }, signal) {
    try {
      const found = await this.page.sessions.use(
        loaded.project,
        (id) => this.page.server.suggest(id, { anchors }, signal),
        signal,
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
