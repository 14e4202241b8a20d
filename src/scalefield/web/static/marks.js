// What is drawn over the photo, the cloud and the exported picture: anchors, measurements, suggestions, scale bars.

/** @typedef {import("./state.js").Pixel} Pixel */
/** @typedef {{x: number, y: number}} Place */
/** @typedef {import("./geometry.js").Size} Size */
/** @typedef {CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D} Context */
/** @typedef {{kind: string, points: Pixel[], label: string, unsure: boolean, active?: boolean}} Line */
/** @typedef {{anchors: import("./state.js").Anchor[], about: (i: number) => import("./readings.js").About, first:
 *  Set<number>,
 *    hovered: number | null, suggestions: Pixel[], lines: Line[]}} Scene */

const MANY = 150; // number of anchors from which they are drawn as dots
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const SURFACES = new Set(["area", "level", "upright"]);
const DARK = "rgb(20 22 28 / 90%)";

/** Everything of a scene whose place is known.
 *  @param {Context} context @param {Scene} scene @param {(pixel: Pixel) => Place | null} at @param {Size} size */
export function drawMarks(context, scene, at, size) {
  scene.suggestions.forEach((s, i) => drawSuggestion(context, at(s), i + 1));
  const lines = scene.lines.flatMap((line) => {
    const places = line.points.flatMap((p) => at(p) ?? []);
    return places.length === line.points.length ? [{ ...line, places }] : [];
  });
  for (const line of lines) drawLine(context, line);
  drawAnchors(context, scene, at, size);
  for (const line of lines) labelLine(context, line);
}

/** @param {Context} context @param {Place | null} place @param {number} number */
function drawSuggestion(context, place, number) {
  if (!place) return;
  const { x, y } = place;
  circle(context, x, y, 14, "rgb(0 0 0 / 50%)");
  context.setLineDash([4, 3]);
  circle(context, x, y, 14, null, "#7ff0d4", 2.5);
  context.setLineDash([]);
  write(context, String(number), x, y, "#c9fbef", 13);
}

/** @param {Context} context @param {Scene} scene @param {(pixel: Pixel) => Place | null} at @param {Size} size */
function drawAnchors(context, { anchors, about, first, hovered }, at, size) {
  const many = anchors.length > MANY;
  const placed = anchors.flatMap(({ id }, i) => {
    const place = at(anchors[i]);
    return place && inside(place, size, 20) ? [{ ...place, id, i }] : [];
  });
  const large = many ? placed.filter(({ id }) => first.has(id)) : placed;
  for (const { x, y, i } of many ? thinned(placed, 7) : []) {
    circle(context, x, y, 4.2, "#17181d");
    circle(context, x, y, 3.4, "#fff");
    circle(context, x, y, 3, about(i).colour);
  }
  for (const { x, y, id, i } of large) {
    const { colour, ink, suspect, unused } = about(i);
    context.globalAlpha = unused && !suspect ? 0.55 : 1;
    circle(context, x, y, 11.7, suspect ? "#c5221f" : "#17181d");
    circle(context, x, y, 10.3, "#fff");
    circle(context, x, y, 8.3, colour);
    write(context, String(i + 1), x, y + 0.5, ink, i > 98 ? 8 : 10.5);
    if (hovered === id) circle(context, x, y, 15, null, "#fff", 2.5, true);
    context.globalAlpha = 1;
  }
  drawPlates(context, [...large].sort((a, b) => Number(first.has(b.id)) - Number(first.has(a.id))), about, first, size);
}

/** Distances beside the anchors, where they do not overlap.
 *  @param {Context} context @param {(Place & {id: number, i: number})[]} placed @param {Scene["about"]} about
 *  @param {Set<number>} first @param {Size} size */
function drawPlates(context, placed, about, first, size) {
  /** @type {number[][]} */
  const taken = [];
  context.font = `600 12.5px ${FONT}`;
  for (const { x, y, id, i } of placed.slice(0, 200)) {
    const { plate, suspect } = about(i), width = context.measureText(plate).width + 14;
    const left = x + 16 + width > size.width ? x - 16 - width : x + 16, box = [left, y - 11, left + width, y + 11];
    const overlaps = taken.some((t) => box[0] < t[2] && box[2] > t[0] && box[1] < t[3] && box[3] > t[1]);
    if (overlaps && !first.has(id)) continue;
    taken.push(box);
    plaque(
      context, plate, left + width / 2, y, width, suspect ? "#b3261e" : "rgb(255 255 255 / 93%)",
      suspect ? "#fff" : "#1b1d22", 21,
    );
  }
}

/** @param {Context} context @param {Line & {places: Place[]}} line */
function drawLine(context, { kind, places, unsure, active = false }) {
  const closed = SURFACES.has(kind) && places.length > 2;
  if (closed) {
    context.fillStyle = "rgb(255 255 255 / 22%)";
    outline(context, places, true);
    context.fill();
  }
  if (places.length > 1) stroke(context, places, closed, active || unsure);
  for (const { x, y } of places) circle(context, x, y, 4.5, "#fff", "#17181d", 1.6);
}

/** The label in the middle of a line or area. @param {Context} context @param {Line & {places: Place[]}} line */
function labelLine(context, { kind, places, label, unsure }) {
  if (!label || places.length < 2) return;
  const start = Math.floor((places.length - 2) / 2),
    middle = SURFACES.has(kind) ? places : places.slice(start, start + 2);
  const mean = (/** @type {"x" | "y"} */ axis) => middle.reduce((sum, p) => sum + p[axis], 0) / middle.length;
  context.font = `600 13px ${FONT}`;
  const width = context.measureText(label).width + 16, y = mean("y") - (SURFACES.has(kind) ? 0 : 16);
  plaque(context, label, mean("x"), y, width, unsure ? "rgb(84 86 94 / 92%)" : DARK, unsure ? "#e2e3e8" : "#fff", 24);
}

/** @param {Context} context @param {string} words @param {number} x of its middle @param {number} y
 *  @param {number} width
 *  @param {string} paper @param {string} ink @param {number} height */
function plaque(context, words, x, y, width, paper, ink, height) {
  context.fillStyle = paper;
  context.beginPath();
  context.roundRect(x - width / 2, y - height / 2, width, height, 8);
  context.fill();
  write(context, words, x, y + 0.5, ink, height > 21 ? 13 : 12.5);
}

/** A bar of that many pixels that stands for a length, at the lower left. @param {Context} context
 *  @param {string} words
 *  @param {number} wide @param {Size} size */
export function drawScaleBar(context, words, wide, { height }) {
  const x = 18, y = height - 20;
  plaque(context, "", x + wide / 2, y - 8, wide + 16, "rgb(20 22 28 / 78%)", "#fff", 36);
  context.fillStyle = "#fff";
  context.fillRect(x, y, wide, 3);
  context.fillRect(x, y - 5, 2, 8);
  context.fillRect(x + wide - 2, y - 5, 2, 8);
  write(context, words, x + wide / 2, y - 13, "#fff", 12.5);
}

/** Colours of a table from left to right. @param {Context} context @param {number[][]} table @param {number} left
 *  @param {number} top @param {number} width @param {number} height */
export function drawColours(context, table, left, top, width, height) {
  table.forEach(([r, g, b], i) => {
    context.fillStyle = `rgb(${r} ${g} ${b})`;
    context.fillRect(left + (width * i) / table.length, top, width / table.length + 1, height);
  });
}

/** @param {Context} context @param {number} x @param {number} y @param {number} r
 *  @param {string | null} fill @param {string} [line] @param {number} [width] @param {boolean} [halo] */
export function circle(context, x, y, r, fill, line = "", width = 0, halo = false) {
  context.beginPath();
  context.arc(x, y, r, 0, 7);
  if (fill) {
    context.fillStyle = fill;
    context.fill();
  }
  for (const [style, wide] of /** @type {[string, number][]} */ ([
    [halo ? "rgb(0 0 0 / 55%)" : "", width + 2.5], [line, width],
  ])) {
    if (!style) continue;
    context.strokeStyle = style;
    context.lineWidth = wide;
    context.stroke();
  }
}

/** @param {Context} context @param {string} words @param {number} x @param {number} y @param {string} colour
 *  @param {number} size */
export function write(context, words, x, y, colour, size) {
  context.font = `600 ${size}px ${FONT}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = colour;
  context.fillText(words, x, y);
}

/** @param {Context} context @param {Place[]} places @param {boolean} closed */
function outline(context, places, closed) {
  context.beginPath();
  places.forEach(({ x, y }, i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  if (closed) context.closePath();
}

/** @param {Context} context @param {Place[]} places @param {boolean} [closed] @param {boolean} [dashed] */
export function stroke(context, places, closed = false, dashed = false) {
  outline(context, places, closed);
  context.lineJoin = "round";
  context.strokeStyle = "rgb(0 0 0 / 60%)";
  context.lineWidth = 5;
  context.stroke();
  if (dashed) context.setLineDash([6, 4]);
  context.strokeStyle = "#fff";
  context.lineWidth = 2;
  context.stroke();
  context.setLineDash([]);
}

/** @param {Context} context @param {Place} at */
export function drawCross(context, { x, y }) {
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
    stroke(context, [{ x: x + 5 * dx, y: y + 5 * dy }, { x: x + 15 * dx, y: y + 15 * dy }]);
  }
}

/** @param {Place} place @param {Size} size @param {number} margin */
const inside = ({ x, y }, { width, height }, margin) =>
  x > -margin && y > -margin && x < width + margin && y < height + margin;

/** One of the places in each square of `cell` screen pixels. @template {Place} T @param {T[]} places
 *  @param {number} cell */
export function thinned(places, cell) {
  const taken = new Set();
  return places.filter(({ x, y }) => {
    const key = Math.floor(x / cell) * 65536 + Math.floor(y / cell);
    return !taken.has(key) && taken.add(key);
  });
}
