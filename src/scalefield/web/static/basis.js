// Every basis map with the weight that the anchors gave it.

import { Scale, paint, percentiles } from "./maps.js";
import { element } from "./dom.js";

/** @typedef {{shape: number[], values: Float32Array}} BasisMaps */

/** Draw K maps in the order of their contribution to ℓ. Each shows map × weight, and all share one
 *  colour scale.
 *  @param {HTMLElement} container @param {BasisMaps} basis @param {number[] | null} weights
 *  @param {number[][]} table */
export function drawBasis(container, basis, weights, table) {
  const [k, h, w] = basis.shape;
  const size = h * w;
  const maps = Array.from({ length: k }, (_, m) => {
    const values = basis.values.subarray(m * size, (m + 1) * size);
    const share = weights ? values.map((v) => v * weights[m]) : values;
    return {
      m, share, reach: Math.max(...percentiles(share, [0.01, 0.99]).map(Math.abs)), weight: weights?.[m] ?? null,
    };
  });
  if (weights) maps.sort((a, b) => b.reach - a.reach);
  // The strongest maps may saturate; otherwise the others would be pale.
  const reach = Math.max(maps.map((map) => map.reach).sort((a, b) => b - a)[Math.min(3, k - 1)], 0.02);
  const scale = new Scale(table, -reach, reach, false);
  const heaviest = Math.max(...maps.map(({ weight }) => Math.abs(weight ?? 0)), 1e-9);
  const old = [...container.children];
  container.replaceChildren(
    ...maps.map(({ m, share, weight }, i) => {
      const figure = old[i] ?? makeFigure();
      const part = (/** @type {string} */ name) => /** @type {any} */ (figure.querySelector(name));
      paint(part("canvas"), share, scale, w, h);
      const words = weight === null ? "no weight yet" : `w = ${weight < 0 ? "−" : ""}${Math.abs(weight).toFixed(3)}`;
      part("sub").textContent = m;
      part(".weight").textContent = words;
      part(".beam").style.setProperty("--share", (weight ?? 0) / heaviest / 2);
      part(".beam").classList.toggle("negative", (weight ?? 0) < 0);
      part("canvas").setAttribute("aria-label", `Basis map ${m}: ${words}`);
      return figure;
    }),
  );
  return scale;
}

function makeFigure() {
  const figure = element("figure");
  const canvas = element("canvas");
  canvas.setAttribute("role", "img");
  const caption = element("figcaption");
  const name = element("b", "", "E");
  name.append(element("sub"));
  caption.append(name, element("span", "weight"), element("span", "beam"));
  figure.append(canvas, caption);
  return figure;
}
