// The display: the maps, the cloud, the colour bar, the profile and the captions.

import { drawBasis } from "./basis.js";
import { Cloud, gridStep, scaleBarLength } from "./cloud.js";
import { $, element, setText } from "./dom.js";
import { pointOf } from "./geometry.js";
import { inUnit } from "./units.js";
import { UNCERTAINTY_TABLE, depthScale, factorScale, paint, percentiles, ticks } from "./maps.js";
import { showMethod, showPanel } from "./panel.js";
import { drawProfile } from "./profile.js";
import { displayIndex, metresAt } from "./readings.js";
import { drawColours, drawMarks, drawScaleBar } from "./marks.js";

/** @typedef {import("./geometry.js").Pixel} Pixel */
/** @typedef {import("./units.js").Unit} Unit */

const ASSUMED_FOV = 60;
const BUSY_MS = 250; // a solve that takes longer is shown as under way; an animation would slow down a shorter one

/** Every view: the tab of the page that shows it, whether it is a picture on the stage, whether it needs a result,
 *  whether a
 *  second method is shown beside it, and the quantity of its colour bar, of which `log` is the logarithm.
 *  @typedef {{tab: string, flat: boolean, solved: boolean, compared: boolean,
 *    value: (log: number, unit: Unit) => number, suffix: (unit: Unit) => string}} View */
/** @type {Pick<View, "value" | "suffix">} */
const METRES = { value: (log, unit) => inUnit(Math.exp(log), unit), suffix: (unit) => ` ${unit}` };
/** @type {Pick<View, "value" | "suffix">} */
const PERCENT = { value: (log) => 100 * Math.exp(log), suffix: () => " %" };
/** @type {Pick<View, "value" | "suffix">} */
const FACTOR = { value: Math.exp, suffix: () => "×" };
/** @type {Record<string, View>} */
export const VIEWS = {
  photo: { tab: "photo", flat: true, solved: false, compared: false, ...METRES },
  depth: { tab: "depth", flat: true, solved: true, compared: true, ...METRES },
  uncertainty: { tab: "uncertainty", flat: true, solved: true, compared: false, ...PERCENT },
  mde: { tab: "inspect", flat: true, solved: false, compared: false, ...FACTOR, suffix: () => "" },
  field: { tab: "inspect", flat: true, solved: true, compared: true, ...FACTOR },
  basis: { tab: "inspect", flat: false, solved: false, compared: false, ...FACTOR },
  cloud: { tab: "cloud", flat: false, solved: false, compared: false, ...METRES },
};

/** Round values of a colour bar with their place, 0 to 1: evenly in the quantity, or in its logarithm.
 *  @param {string} view @param {import("./maps.js").Scale} scale @param {Unit} unit @param {number} most
 *  @returns {{share: number, text: string}[]} */
export function barTicks(view, scale, unit, most) {
  const { value, suffix } = VIEWS[view];
  const [low, high] = [scale.low, scale.high].map((log) => value(log - scale.middle, unit));
  const f = scale.even ? (/** @type {number} */ x) => x : Math.log;
  const share = (/** @type {number} */ x) => (f(x) - f(low)) / (f(high) - f(low));
  return ticks(low, high, most, !scale.even).map((tick) => ({ share: share(tick), text: `${tick}${suffix(unit)}` }));
}

export class Views {
  /** @param {import("./page.js").Page} page */
  constructor(page) {
    this.page = page;
    /** @type {Cloud | null} */
    this.cloud = null;
    /** @type {any} */
    this.metreScale = null;
    /** @type {any} */
    this.barScale = null;
    /** @type {Float32Array | null} */
    this.barValues = null;
    /** @type {any} */
    this.busyWith = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.busyTimer = undefined;
    /** @type {Pixel | null} */
    this.pointedAt = null;
  }

  showAll() {
    const { loaded } = this.page;
    if (!loaded) return;
    if (loaded.result) {
      const arrays = [loaded.result.logDepth, ...(loaded.other ? [loaded.other.logDepth] : [])];
      this.metreScale = depthScale(this.page.info.colours.near_to_far, arrays);
    }
    loaded.painted = new Map();
    loaded.abouts = null;
    this.showView();
    showPanel(this.page);
    this.showProfile();
    this.showOptions();
    this.page.measuring.update();
  }

  showOptions() {
    const { view, tool, loaded } = this.page, depth = view === "depth" && Boolean(loaded?.result);
    const inspect = VIEWS[view].tab === "inspect";
    $("inspect-options").hidden = !inspect;
    $("measure-options").hidden = tool !== "measure";
    $("blend-row").hidden = !depth || tool === "measure";
    $("options").hidden = !inspect && tool !== "measure" && !depth;
    const { pending } = this.page.tools;
    $("measure-done").hidden = !this.page.tools.enough;
    $("measure-cancel").hidden = !pending;
    $("measure-options").classList.toggle("pending", Boolean(pending));
  }

  showView() {
    const { view, shown: loaded } = this.page, { session, result } = loaded;
    const { flat, solved } = VIEWS[view];
    $("stage").hidden = !flat;
    $("basis").hidden = view !== "basis";
    $("cloud-area").hidden = view !== "cloud";
    const unknown = view === "uncertainty" && result !== null && !result.stdLog;
    const empty = solved && (!result || unknown);
    $("stage-empty").hidden = !empty;
    setText(
      $("stage-empty"),
      unknown
        ? `${this.page.titles[result.method]} gives no range. Choose the Gaussian process to see it.`
        : "No metres yet. Click something whose distance you know.",
    );
    $("stage").classList.toggle("empty", empty);
    this.showDivider(empty);
    if (view === "basis") this.showBasis();
    else if (view === "cloud") this.showCloud();
    else this.showMap(empty, session);
    this.page.stage.redraw(true);
    this.showCaption();
    this.showStale();
  }

  /** @param {boolean} empty */
  showDivider(empty) {
    const { view, titles, shown: { result, other } } = this.page;
    $("divider").hidden = !result || !other || empty || !VIEWS[view].compared;
    if (!result || !other || $("divider").hidden) return;
    setText($("divider-left"), titles[result.method]);
    setText($("divider-right"), titles[other.method]);
    $("divider").setAttribute(
      "aria-valuetext", `${Math.round(100 * this.page.tools.share)} % ${titles[result.method]}`,
    );
    this.page.stage.place();
  }

  /** @param {boolean} empty @param {any} session */
  showMap(empty, { display_width: w, display_height: h }) {
    const { view, shown: loaded } = this.page,
      { result } = loaded;
    if (view === "photo" || empty)
      return this.showBar(view === "photo" && result ? this.metreScale : null, result?.logDepth);
    const { first, second = null, scale } = this.mapOf(view);
    const painted = (/** @type {Float32Array | null} */ values) => {
      if (!values) return null;
      const canvas = new OffscreenCanvas(w, h);
      paint(canvas, values, scale, w, h);
      return canvas;
    };
    loaded.painted.set(view, { first: painted(first), second: painted(second) });
    this.showBar(scale, first);
  }

  /** The values of a view, those of the second method, and their colour scale. @param {string} view */
  mapOf(view) {
    const { result, other, logMde } = this.page.shown, { near_to_far, small_to_large } = this.page.info.colours;
    if (result && view === "depth") return { first: result.logDepth, second: other?.logDepth, scale: this.metreScale };
    if (result?.stdLog && view === "uncertainty") {
      const share = result.stdLog.map((std) => Math.log(Math.expm1(std)));
      return { first: share, scale: depthScale(UNCERTAINTY_TABLE, [share]) };
    }
    if (result && view === "field") {
      return { first: result.logScale, second: other?.logScale, scale: factorScale(small_to_large, result.logScale) };
    }
    return { first: logMde, scale: depthScale(near_to_far, [logMde]) };
  }

  showBasis() {
    const { shown: loaded } = this.page, weights = loaded.result?.header.weights ?? null;
    const method = (weights && loaded.result?.method) || "basis";
    if (loaded.basis?.revision !== loaded.session.revision || loaded.basis.method !== method) {
      this.page.solving.loadBasis(method);
      return this.showBar(null);
    }
    const scale = drawBasis($("basis"), loaded.basis, weights, this.page.info.colours.small_to_large);
    this.showBar(scale);
  }

  showCloud() {
    this.showBar(null);
    const { shown: loaded } = this.page, { session, result } = loaded;
    this.cloud ??= new Cloud($("cloud"), $("cloud-layer"), {
      drawLayer: (context, cloud) => this.drawCloudLayer(context, cloud),
      picked: (pixel) => this.page.tool === "measure" && this.page.tools.measureAt(pixel),
      finish: () => this.page.finish(), escape: () => this.page.escape(),
    });
    $("cloud-missing").hidden = this.cloud.works;
    if (!this.cloud.works) return;
    if (!loaded.photoPixels) {
      const canvas = new OffscreenCanvas(session.display_width, session.display_height);
      const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d"));
      context.drawImage(loaded.photo, 0, 0, canvas.width, canvas.height);
      loaded.photoPixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
      this.cloud.setPhoto(session, loaded.photoPixels);
    }
    const log = result?.logDepth ?? loaded.logMde,
      [far] = percentiles(log, [0.98]);
    this.cloud.setDepth(log, this.page.fov?.deg ?? ASSUMED_FOV, {
      step: gridStep(Math.exp(far), 1 / inUnit(1, this.page.unit)), shown: Boolean(result),
    });
    const assumed = !this.page.fov || this.page.fov.source === "assumed";
    $("cloud-assumed").hidden = !assumed;
    setText($("cloud-assumed"), `Field of view assumed: ${this.page.fov?.deg ?? ASSUMED_FOV}°`);
  }

  /** Anchors, measurements and a scale bar over the cloud. @param {CanvasRenderingContext2D} context
   *  @param {Cloud} cloud */
  drawCloudLayer(context, cloud) {
    const { session, result } = this.page.shown, { unit } = this.page, deg = this.page.fov?.deg ?? ASSUMED_FOV;
    if (!result) return;
    const at = (/** @type {Pixel} */ pixel) => {
      const depth = metresAt(session, result.logDepth, pixel);
      return depth === null ? null : cloud.project(pointOf(session, deg, pixel, depth));
    };
    drawMarks(context, this.page.drawing(null).scene, at, cloud.size);
    const perUnit = cloud.pixelsPerMetre / inUnit(1, unit), length = scaleBarLength(perUnit, cloud.size.width);
    drawScaleBar(context, `${Number(length.toPrecision(3))} ${unit}`, length * perUnit, cloud.size);
  }

  /** The colour bar under the picture; the mark of the pointer follows `values`.
   *  @param {any} scale @param {Float32Array | null} [values] */
  showBar(scale, values = null) {
    this.barScale = scale;
    this.barValues = values;
    $("colour-bar").hidden = !scale;
    if (!scale) return;
    drawColours($("colours").getContext("2d"), scale.table, 0, 0, 256, 1);
    const marks = barTicks(this.page.view, scale, this.page.unit, innerWidth < 600 ? 5 : 8).map(({ share, text }) => {
      const mark = element("span", "", text);
      mark.style.left = `${100 * share}%`;
      return mark;
    });
    const here = element("i", "here");
    here.hidden = true;
    $("ticks").replaceChildren(...marks, here);
  }

  /** @param {Pixel | null} pixel */
  markBar(pixel) {
    this.pointedAt = pixel;
    const mark = $("ticks").querySelector(".here");
    if (!mark) return;
    const log = pixel && this.barScale && this.barValues ? this.barValues[displayIndex(this.page.session, pixel)] : NaN;
    mark.hidden = !Number.isFinite(log);
    if (!mark.hidden) mark.style.left = `${100 * Math.min(1, Math.max(0, this.barScale.position(log)))}%`;
  }

  showCaption() {
    const { result, session } = this.page.shown, { pending } = this.page.tools;
    const touch = matchMedia("(pointer: coarse)").matches, click = touch ? "Tap" : "Click";
    const median = result ? Math.exp(percentiles(result.logScale, [0.5])[0]).toPrecision(3) : "";
    const middle = median && ` of ${median}`;
    const captions = {
      photo: !result
        ? `${click} something whose distance you know.`
        : touch
          ? "Tap anywhere to read its distance or to set one."
          : "Point anywhere to read its distance; click to set one.",
      depth: "Recovered depth: straight ahead of the camera, not along the slant.",
      uncertainty: "One standard deviation of the distance, as a share of it: pale is small, dark is large.",
      field: `The scale: metres per unit of relative depth, around its median${middle}.`,
      mde: `Relative depth of ${session.relative_depth}: nearer and farther, in no unit.`,
      basis: result?.header.weights
        ? "What each learned map adds to the scale, as a factor; all have one colour scale."
        : "Learned maps of this photo, of which the scale is made. Set a distance to see their weights.",
      cloud: touch
        ? "Drag to turn; two fingers move it and zoom."
        : "Drag to turn, Shift-drag to move, scroll to zoom.",
    };
    let words = captions[/** @type {keyof typeof captions} */ (this.page.view)] ?? "";
    if (this.page.tool === "measure") {
      const n = pending?.points.length ?? 0;
      const plane = `${click} three points of it, far apart${n ? `: ${3 - n} left` : ""}.`;
      const hints = {
        level: plane, upright: plane,
        distance: n ? `${click} the second point.` : `${click} two points to read the distance between them.`,
        height: `${click} ${n ? "the second end" : "both ends"}; a level camera is assumed.`,
        path: n ? `${click} further points; Done or Enter ends the path.` : `${click} the points of a path.`,
        area: n ? `${click} further corners; Done or Enter ends the area.` : `${click} the corners of an area.`,
      };
      words = hints[this.page.tools.measureKind];
    }
    if (this.page.tool === "profile") words = `${click} or slide to choose the row.`;
    setText($("caption"), words);
  }

  showProfile() {
    const { shown: loaded } = this.page, { profileRow } = this.page.tools;
    const on = profileRow !== null && VIEWS[this.page.view].flat;
    $("profile").hidden = !on;
    if (!on) return;
    const { result, other, logTruth, session } = loaded, { display_width: w, height, display_height: h } = session;
    const row = Math.min(h - 1, Math.floor(((profileRow + 0.5) * h) / height));
    const cut = (/** @type {Float32Array} */ values) => values.subarray(row * w, (row + 1) * w);
    const lines = [];
    if (logTruth && result) lines.push({ kind: "truth", label: "true", values: cut(logTruth) });
    if (other) lines.push({ kind: "second", label: this.page.titles[other.method], values: cut(other.logDepth) });
    if (result) lines.push({ kind: "first", label: this.page.titles[result.method], values: cut(result.logDepth) });
    setText(
      $("profile-title"),
      lines.length ? `Depth along row ${profileRow}` : "Set a distance to see the profile in metres",
    );
    const share = (/** @type {Pixel} */ { u }) => (u + 0.5) / session.width;
    const band = this.page.tools.profilePixels().flatMap((pixel) => {
      const { low, high } = this.page.measuring.depthAt(pixel) ?? {};
      return low && high ? [{ share: share(pixel), low, high }] : [];
    });
    drawProfile($("profile-chart"), lines, band, this.page.unit, this.pointedAt && share(this.pointedAt));
  }

  /** Show the busy state with the name of the method. @param {any} request */
  showBusy(request) {
    this.busyWith = request;
    $("stage").setAttribute("aria-busy", String(Boolean(request)));
    clearTimeout(this.busyTimer);
    if (request) this.busyTimer = setTimeout(() => ($("busy").hidden = false), BUSY_MS);
    else $("busy").hidden = true;
    this.showStale();
  }

  /** Mark a result of another method than the chosen one. */
  showStale() {
    const { busyWith, page: { loaded, titles } } = this, shown = loaded?.result?.method;
    const stale = Boolean(busyWith && shown && shown !== busyWith.method);
    $("stage").classList.toggle("stale", stale);
    if (busyWith) {
      const words = stale ? `, still showing ${titles[/** @type {string} */ (shown)]}` : "";
      setText($("busy-text"), `Computing ${titles[busyWith.method]}${words} …`);
    }
    if (loaded) showMethod(this.page);
  }
}
