// Depth along a horizontal line of the photo, as a chart.

import { ticks } from "./maps.js";
import { inUnit } from "./units.js";

const SVG = "http://www.w3.org/2000/svg";

/** Draw log-depth at each displayed column, with a gap where there is none, over its interval in metres.
 *  @param {any} svg @param {{kind: string, label: string, values: Float32Array}[]} lines
 *  @param {{share: number, low: number, high: number}[]} band @param {import("./units.js").Unit} unit
 *  @param {number | null} cursorShare */
export function drawProfile(svg, lines, band, unit, cursorShare) {
  const width = svg.clientWidth || 600, height = 150, left = 52, right = 10, top = 12, bottom = 10;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const depths = lines.map((l) => Array.from(l.values, (v) => inUnit(Math.exp(v), unit)));
  const known = depths.flat().filter(Number.isFinite);
  if (!known.length) return;
  let low = Math.min(...known), high = Math.max(...known);
  // The interval is shown as far as it does not flatten the lines.
  low = Math.min(low, Math.max(low / 1.5, inUnit(Math.min(...band.map((b) => b.low)), unit)));
  high = Math.max(high, Math.min(1.4 * high, inUnit(Math.max(...band.map((b) => b.high)), unit)));
  const air = Math.max(0.06 * (high - low), 0.01 * high);
  [low, high] = [Math.max(0, low - air), high + air];
  const y = (/** @type {number} */ d) => height - bottom - ((height - top - bottom) * (d - low)) / (high - low);
  const add = (/** @type {string} */ name, /** @type {Record<string, string | number>} */ attributes, words = "") => {
    const shape = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, String(value));
    if (words) shape.textContent = words;
    svg.append(shape);
  };
  for (const tick of ticks(low, high, 5, false)) {
    add("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: "grid" });
    add("text", { x: left - 6, y: y(tick) + 4, class: "tick" }, `${tick} ${unit}`);
  }
  const place = (/** @type {number} */ share, /** @type {number} */ metres) => {
    const d = Math.min(high, Math.max(low, inUnit(metres, unit)));
    return `${(left + (width - left - right) * share).toFixed(1)} ${y(d).toFixed(1)}`;
  };
  const edge = [...band.map((b) => place(b.share, b.high)), ...[...band].reverse().map((b) => place(b.share, b.low))];
  if (edge.length) add("path", { d: `M${edge.join("L")}Z`, class: "band" });
  depths.forEach((row, j) => {
    let path = "", pen = false;
    row.forEach((d, i) => {
      if (!Number.isFinite(d)) return void (pen = false);
      const x = left + ((width - left - right) * (i + 0.5)) / row.length;
      path += `${pen ? "L" : "M"}${x.toFixed(1)} ${y(d).toFixed(1)}`;
      pen = true;
    });
    add("path", { d: path, class: `trace ${lines[j].kind}` });
  });
  lines.forEach((line, j) =>
    add("text", { x: left + 8 + 150 * j, y: top + 6, class: `legend ${line.kind}` }, line.label),
  );
  if (cursorShare !== null) {
    const x = left + (width - left - right) * cursorShare;
    add("line", { x1: x, x2: x, y1: top, y2: height - bottom, class: "profile-cursor" });
  }
}
