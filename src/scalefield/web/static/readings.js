// Text and numbers about pixels, anchors and measurements; nothing here touches the page.

import { LEAST_POINTS } from "./measuring.js";
import { formatArea, formatLength, formatMeasured, formatNumber, formatPercent, unitSlip } from "./units.js";
import { PLANES, countedFromOne } from "./state.js";

/** @typedef {import("./geometry.js").Pixel} Pixel */
/** @typedef {import("./units.js").Unit} Unit */
/** @typedef {import("./server.js").Session} Session */
/** The result of a method for a set of anchors.
 *  @typedef {{header: any, method: string, anchors: import("./state.js").Anchor[], sent: import("./solving.js").Edit,
 *    known: Map<number, {code: string, predicted: number | null}>,
 *    index: Map<number, number>, suspects: Set<number>, corroborated: Set<number>, logScale: Float32Array, stdLog:
 *  Float32Array | null, logDepth: Float32Array, preview: boolean}} Result */
/** @typedef {{value: string, range: string, unsure: boolean, notes: string[]}} Reading */

/** @typedef {import("./measuring.js").Estimate} Estimate */
/** What is shown of an anchor; `slip` is the length in another unit that would agree with the others.
 *  @typedef {{colour: string, ink: string, suspect: boolean, unused: boolean, words: string, plate: string,
 *    slip: {text: string, metres: number} | null}} About */

const UNSURE_DEPTH = 3.2, UNSURE_LENGTH = 10; // high / low of an interval from which its value is grey
const NINETY = 1.645; // standard deviations to either side that hold 90 % of a normal distribution
const FITS_LOG = 0.005; // residual below which an anchor fits
const NOTABLE_SIGMAS = 2; // the depth that the other anchors predict is shown from this many standard deviations

/** The index of the displayed pixel in which a pixel of the photo lies. @param {Session} session
 *  @param {Pixel} pixel */
export function displayIndex(session, { u, v }) {
  const { width, height, display_width: w, display_height: h } = session;
  const x = Math.min(w - 1, Math.max(0, Math.floor(((u + 0.5) * w) / width)));
  return Math.min(h - 1, Math.max(0, Math.floor(((v + 0.5) * h) / height))) * w + x;
}

/** @param {Session} session @param {Float32Array | null | undefined} logs @param {Pixel} pixel
 *  @returns {number | null} */
export function metresAt(session, logs, pixel) {
  const log = logs ? logs[displayIndex(session, pixel)] : NaN;
  return Number.isFinite(log) ? Math.exp(log) : null;
}

/** Depth at a displayed pixel with its interval, until the server has read that of the photo's pixel.
 *  @param {Session} session @param {Result} result @param {Pixel} pixel @returns {Estimate} */
export function shownAt(session, result, pixel) {
  const value = metresAt(session, result.logDepth, pixel), std = result.stdLog?.[displayIndex(session, pixel)];
  if (value === null || std === undefined) return { value, low: null, high: null };
  return { value, low: value * Math.exp(-NINETY * std), high: value * Math.exp(NINETY * std) };
}

/** The text of the readout for a pixel. A value whose interval is wide has its range first and is grey.
 *  @param {{session: Session, result: Result | null, other: Result | null, logTruth: Float32Array | null}} known
 *  @param {Pixel} pixel @param {Unit} unit @param {{titles: Record<string, string>, view: string}} names
 *  @param {Estimate | null} exact of the photo's pixel @returns {Reading | null} */
export function readingAt({ session, result, other, logTruth }, pixel, unit, { titles, view }, exact = null) {
  if (!result) return null;
  const { value, low, high } = exact ?? shownAt(session, result, pixel);
  /** @type {string[]} */
  const notes = [];
  if (value === null) return { value: "no depth here", range: "", unsure: true, notes };
  const truth = metresAt(session, logTruth, pixel);
  if (other)
    notes.push(`${titles[other.method]}: ${formatLength(metresAt(session, other.logDepth, pixel) ?? NaN, unit)}`);
  if (truth) notes.push(`true: ${formatLength(truth, unit)} (${formatPercent(Math.log(value / truth))})`);
  const scale = Math.exp(result.logScale[displayIndex(session, pixel)]).toPrecision(3);
  if (view === "field") notes.push(`scale × ${scale}`);
  const range = low && high ? `${formatNumber(low, unit)} … ${formatLength(high, unit)}` : "";
  return { value: formatLength(value, unit), range, unsure: Boolean(low && high && high / low > UNSURE_DEPTH), notes };
}

/** Colour of text on a colour. @param {string} colour as rgb(r g b) */
export function inkOn(colour) {
  const [r, g, b] = (colour.match(/\d+/g) ?? ["255", "255", "255"]).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#15161a" : "#fff";
}

/** Colour and text for every anchor, from the result that was solved with it.
 *  @param {import("./state.js").Anchor[]} anchors @param {Result | null} result @param {Unit} unit
 *  @param {(depth_m: number) => string} colourOf
 *  @param {(anchor: import("./state.js").Anchor) => number} [ray] distance as it was measured over depth */
export function aboutAnchors(anchors, result, unit, colourOf, ray = (_) => 1) {
  return anchors.map((anchor) => {
    const colour = colourOf(anchor.depth_m), plate = formatMeasured(anchor, unit);
    /** @type {About} */
    const about = { colour, ink: inkOn(colour), suspect: false, unused: false, words: "", plate, slip: null };
    const at = result?.index.get(anchor.id);
    if (!result || at === undefined) return about;
    const { header } = result, state = header.anchors[at], told = header.others[at];
    const others = told && { ...told, depth_m: told.depth_m * ray(anchor) };
    about.suspect = result.suspects.has(at);
    about.unused = Boolean(state.reason);
    const expected = others ? formatLength(others.depth_m, unit) : "",
      notable = Math.abs(others?.sigmas) > NOTABLE_SIGMAS;
    const expected_m = others ? notable && others.depth_m : header.expected_m?.[at];
    about.slip = expected_m ? unitSlip(anchor, unit, expected_m) : null;
    if (about.suspect) {
      const off = formatPercent(Math.log(others.depth_m / anchor.depth_m));
      about.words = `${about.unused ? "not used: " : ""}the others give ${expected} (${off})`;
      about.plate = `${plate} · others ${expected}`;
    } else if (about.unused) about.words = `not used: ${countedFromOne(state.reason)}`;
    else if (result.corroborated.has(at)) about.words = "used: neighbours agree, the photo's depth does not";
    else if (notable) about.words = `used; the others alone would give ${expected}`;
    else about.words = Math.abs(state.residual_log) < FITS_LOG ? "fits" : `map ${formatPercent(state.residual_log)}`;
    return about;
  });
}

/** A measurement's value and range in words.
 *  @param {import("./measuring.js").Shape} shape @param {Estimate | null} estimate null until the server has read it
 *  @param {Unit} unit @returns {{label: string, value: string, range: string, unsure: boolean}} */
export function measured({ kind, points, name, known }, estimate, unit) {
  const nothing = { label: "", value: "–", range: "", unsure: true };
  if (known || PLANES.has(kind)) {
    const label = [name, known?.text ?? (name ? "" : kind === "level" ? "floor or table" : "wall")]
      .filter(Boolean)
      .join(": ");
    return { label, value: label, range: "", unsure: false };
  }
  if (!estimate || points.length < LEAST_POINTS[kind]) return nothing;
  if (estimate.value === null)
    return { ...nothing, value: estimate.error ? "–" : "no depth at a point", range: estimate.error ?? "" };
  const words = (/** @type {number} */ x) => (kind === "area" ? formatArea(x, unit) : formatLength(x, unit));
  const number = (/** @type {number} */ x) => (kind === "area" ? words(x).split(" ")[0] : formatNumber(x, unit));
  const value = words(estimate.value),
    { low, high } = estimate,
    titled = (/** @type {string} */ x) => (name ? `${name}: ${x}` : x);
  if (low === null || high === null)
    return { label: titled(value), value, range: "range not known with this method", unsure: false };
  const range = `${number(low)} … ${words(high)}`,
    unsure = high > UNSURE_LENGTH * low;
  return { label: titled(unsure ? range : value), value, range, unsure };
}

/** The anchors as a table that `Anchors.read` and the page read.
 *  @param {{u: number, v: number, depth_m: number, sigma_m?: number | null}[]} anchors */
export function writeAnchorTable(anchors) {
  const sigma = anchors.some((a) => a.sigma_m);
  const lines = anchors.map((a) => [a.u, a.v, a.depth_m, ...(sigma ? [a.sigma_m ?? ""] : [])].join(","));
  return [sigma ? "u,v,depth_m,sigma_m" : "u,v,depth_m", ...lines, ""].join("\n");
}

/** Measurements for a spreadsheet, in metres.
 *  @param {import("./state.js").Measurement[]} measurements
 *  @param {(m: import("./state.js").Measurement) => Estimate | null} estimateOf
 *  @param {Result | null} result @param {import("./state.js").FieldOfView | null} fov */
export function writeMeasurements(measurements, estimateOf, result, fov) {
  const lines = measurements.map((m, i) => {
    const digits = (/** @type {number | null | undefined} */ x) =>
      x === null || x === undefined ? "" : Number(x.toPrecision(6));
    const { value, low, high } = estimateOf(m) ?? {},
      points = m.points.map(({ u, v }) => `${u} ${v}`).join(" / ");
    const unit = m.kind === "area" ? "m2" : "m",
      source = [result?.method ?? "", fov?.deg ?? "", fov?.source ?? ""];
    const name = `"${(m.name ?? "").replaceAll('"', '""')}"`;
    return [i + 1, m.kind, digits(value), unit, digits(low), digits(high), ...source, name, points].join(",");
  });
  return ["number,kind,value,unit,low_90,high_90,method,fov_deg,fov_source,name,points_u_v", ...lines, ""].join("\n");
}
