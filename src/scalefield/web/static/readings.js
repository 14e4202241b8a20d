// Text and numbers about pixels, anchors and measurements; nothing here touches the page.

import { UNSURE_STD, depthRange, estimate } from "./geometry.js";
import { formatArea, formatLength, formatMeasured, formatNumber, formatPercent } from "./units.js";
import { countedFromOne } from "./state.js";

/** @typedef {import("./geometry.js").Pixel} Pixel */
/** @typedef {import("./units.js").Unit} Unit */
/** @typedef {import("./server.js").Session} Session */
/** The result of a method for a set of anchors.
 *  @typedef {{header: any, method: string, index: Map<number, number>, suspects: Set<number>, logScale: Float32Array,
 *    stdLog: Float32Array | null, logDepth: Float32Array, preview: boolean}} Result */
/** @typedef {{value: string, range: string, unsure: boolean, notes: string[]}} Reading */

const NOTABLE_SIGMAS = 2; // the depth that the other anchors predict is shown from this many standard deviations

/** The index of the displayed pixel in which a pixel of the photo lies. @param {Session} session @param {Pixel} pixel */
export function displayIndex(session, { u, v }) {
  const { width, height, display_width: w, display_height: h } = session;
  const x = Math.min(w - 1, Math.max(0, Math.floor(((u + 0.5) * w) / width)));
  return Math.min(h - 1, Math.max(0, Math.floor(((v + 0.5) * h) / height))) * w + x;
}

/** @param {Session} session @param {Float32Array | null | undefined} logs @param {Pixel} pixel @returns {number | null} */
export function metresAt(session, logs, pixel) {
  const log = logs ? logs[displayIndex(session, pixel)] : NaN;
  return Number.isFinite(log) ? Math.exp(log) : null;
}

/** Depth and deviation of a pixel, for measuring. @param {Session} session @param {Result} result @param {Pixel} pixel
 *  @returns {import("./geometry.js").Sample | null} */
export function sampleAt(session, result, pixel) {
  const depth = metresAt(session, result.logDepth, pixel);
  if (depth === null) return null;
  return { ...pixel, depth, std: result.stdLog ? result.stdLog[displayIndex(session, pixel)] : null };
}

/** The text of the readout for a pixel. A value without support has its range first and is grey.
 *  @param {{session: Session, result: Result | null, other: Result | null, logTruth: Float32Array | null}} known
 *  @param {Pixel} pixel @param {Unit} unit @param {{titles: Record<string, string>, view: string}} names @returns {Reading | null} */
export function readingAt({ session, result, other, logTruth }, pixel, unit, { titles, view }) {
  if (!result) return null;
  const sample = sampleAt(session, result, pixel);
  if (!sample) return { value: "no depth here", range: "", unsure: true, notes: [] };
  const notes = [];
  let range = "", unsure = false;
  if (sample.std !== null) {
    const [near, far] = depthRange(sample.depth, sample.std);
    range = `${formatNumber(near, unit)} … ${formatNumber(far, unit)} ${unit}`;
    unsure = sample.std > UNSURE_STD;
  }
  const truth = metresAt(session, logTruth, pixel);
  if (other) notes.push(`${titles[other.method]}: ${formatLength(metresAt(session, other.logDepth, pixel) ?? NaN, unit)}`);
  if (truth) notes.push(`true: ${formatLength(truth, unit)} (${formatPercent(Math.log(sample.depth / truth))})`);
  if (view === "field") notes.push(`scale × ${Math.exp(result.logScale[displayIndex(session, pixel)]).toPrecision(3)}`);
  return { value: formatLength(sample.depth, unit), range, unsure, notes };
}

/** Colour of text on a colour. @param {string} colour as rgb(r g b) */
export function inkOn(colour) {
  const [r, g, b] = (colour.match(/\d+/g) ?? ["255", "255", "255"]).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#15161a" : "#fff";
}

/** Colour and text for every anchor, from the result that was solved with it.
 *  @param {import("./state.js").Anchor[]} anchors @param {Result | null} result @param {Unit} unit
 *  @param {(depth_m: number) => string} colourOf */
export function aboutAnchors(anchors, result, unit, colourOf) {
  return anchors.map((anchor) => {
    const colour = colourOf(anchor.depth_m), plate = formatMeasured(anchor.depth_m, unit);
    const about = { colour, ink: inkOn(colour), suspect: false, unused: false, words: "", plate };
    const at = result?.index.get(anchor.id);
    if (!result || at === undefined) return about;
    const { header } = result, state = header.anchors[at], others = header.others[at];
    about.suspect = result.suspects.has(at);
    about.unused = Boolean(state.reason);
    const expected = others ? formatLength(others.depth_m, unit) : "";
    if (about.suspect) {
      about.words = `${about.unused ? "not used: " : ""}the others give ${expected} (${formatPercent(Math.log(others.depth_m / anchor.depth_m))})`;
      about.plate = `${plate} · others ${formatNumber(others.depth_m, unit)}`;
    } else if (about.unused) about.words = `not used: ${countedFromOne(state.reason)}`;
    else if (others && Math.abs(others.sigmas) > NOTABLE_SIGMAS) about.words = `used; the others alone would give ${expected}`;
    else about.words = `map ${formatPercent(state.residual_log)}`;
    return about;
  });
}

/** A measurement's value and range in words.
 *  @param {import("./state.js").Measurement | {kind: import("./state.js").MeasureKind, points: Pixel[]}} measurement
 *  @param {Session} session @param {Result | null} result @param {number | null} fovDeg @param {Unit} unit
 *  @returns {{label: string, value: string, range: string, unsure: boolean, estimate: import("./geometry.js").Estimate | null}} */
export function measured({ kind, points }, session, result, fovDeg, unit) {
  const nothing = { label: "", value: "–", range: "", unsure: true, estimate: null };
  const least = kind === "area" ? 3 : 2;
  if (!result || fovDeg === null || points.length < least) return nothing;
  const samples = points.map((p) => sampleAt(session, result, p));
  if (samples.some((s) => s === null)) return { ...nothing, value: "no depth at a point" };
  const found = estimate(kind, /** @type {import("./geometry.js").Sample[]} */ (samples), session, fovDeg);
  const words = (/** @type {number} */ x) => (kind === "area" ? formatArea(x, unit) : formatLength(x, unit));
  const number = (/** @type {number} */ x) => (kind === "area" ? words(x).split(" ")[0] : formatNumber(x, unit));
  const value = words(found.value);
  if (found.low === null || found.high === null) return { label: value, value, range: "range not known with this method", unsure: false, estimate: found };
  const range = `${number(found.low)} … ${words(found.high)}`;
  const unsure = (found.relativeStd ?? 0) > UNSURE_STD;
  return { label: unsure ? range : value, value, range, unsure, estimate: found };
}

/** The anchors as a table that `Anchors.read` and the page read.
 *  @param {{u: number, v: number, depth_m: number, sigma_m?: number | null}[]} anchors */
export function writeAnchorTable(anchors) {
  const sigma = anchors.some((a) => a.sigma_m);
  const lines = anchors.map((a) => [a.u, a.v, a.depth_m, ...(sigma ? [a.sigma_m ?? ""] : [])].join(","));
  return [sigma ? "u,v,depth_m,sigma_m" : "u,v,depth_m", ...lines, ""].join("\n");
}

/** Measurements for a spreadsheet, in metres.
 *  @param {import("./state.js").Measurement[]} measurements @param {Session} session @param {Result | null} result
 *  @param {import("./state.js").FieldOfView | null} fov */
export function writeMeasurements(measurements, session, result, fov) {
  const lines = measurements.map((m, i) => {
    const found = measured(m, session, result, fov?.deg ?? null, "m").estimate;
    const digits = (/** @type {number | null | undefined} */ x) => (x === null || x === undefined ? "" : Number(x.toPrecision(6)));
    const points = m.points.map(({ u, v }) => `${u} ${v}`).join(" / ");
    return [i + 1, m.kind, digits(found?.value), m.kind === "area" ? "m2" : "m", digits(found?.low), digits(found?.high), result?.method ?? "", fov?.deg ?? "", fov?.source ?? "", points].join(",");
  });
  return ["number,kind,value,unit,low_90,high_90,method,fov_deg,fov_source,points_u_v", ...lines, ""].join("\n");
}
