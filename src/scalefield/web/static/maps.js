// Pictures of maps: log D + ℓ, colour scales with round ticks, painting.

/** @typedef {{width: number, height: number, display_width: number, display_height: number}} Shown */

/** ℓ at every displayed pixel: as it is, or bilinear from the generator's grid.
 *  @param {{shape: number[], values: Float32Array}} map @param {Shown} session */
export function upsample(map, session) {
  const { display_width: w, display_height: h, width, height } = session;
  const [gh, gw] = map.shape;
  if (gh === h && gw === w) return map.values;
  const out = new Float32Array(w * h);
  const [x0, x1, fx] = weights(w, width, gw);
  const [y0, y1, fy] = weights(h, height, gh);
  const row = new Float32Array(gw);
  for (let y = 0; y < h; y++) {
    const a = y0[y] * gw, b = y1[y] * gw, f = fy[y];
    for (let x = 0; x < gw; x++) row[x] = map.values[a + x] * (1 - f) + map.values[b + x] * f;
    for (let x = 0, o = y * w; x < w; x++, o++) out[o] = row[x0[x]] * (1 - fx[x]) + row[x1[x]] * fx[x];
  }
  return out;
}

/** For each displayed pixel: the two grid cells and the share of the second. A displayed pixel is
 *  the middle one of its block of the photo; cell centres lie at (i + 0.5) / cells of the photo.
 *  @param {number} shown @param {number} side @param {number} cells
 *  @returns {[Int32Array, Int32Array, Float32Array]} */
function weights(shown, side, cells) {
  const first = new Int32Array(shown), second = new Int32Array(shown), share = new Float32Array(shown);
  for (let i = 0; i < shown; i++) {
    const pixel = Math.floor((i + 0.5) * (side / shown));
    const at = Math.max(0, ((pixel + 0.5) * cells) / side - 0.5);
    first[i] = Math.min(cells - 1, Math.floor(at));
    second[i] = Math.min(cells - 1, first[i] + 1);
    share[i] = at - Math.floor(at);
  }
  return [first, second, share];
}

/** log D̂ = log D + ℓ, within the limits that `recover` keeps.
 *  @param {Float32Array} logMde @param {Float32Array} logScale @param {number[]} limits_m */
export function composeLogDepth(logMde, logScale, limits_m) {
  const out = new Float32Array(logMde.length);
  const [low, high] = limits_m.map(Math.log);
  for (let i = 0; i < out.length; i++) {
    const value = logMde[i] + logScale[i];
    out[i] = value < low ? low : value > high ? high : value; // NaN stays NaN
  }
  return out;
}

/** A few thousand of the finite values, in order. @param {Float32Array} values */
function evenSample(values) {
  const step = Math.max(1, Math.floor(values.length / 6007));
  const found = [];
  for (let i = 0; i < values.length; i += step) if (Number.isFinite(values[i])) found.push(values[i]);
  return Float64Array.from(found).sort();
}

/** @param {Float64Array} sorted @param {number} fraction */
const at = (sorted, fraction) => sorted[Math.round(fraction * (sorted.length - 1))] ?? 0;

/** Percentiles of the finite values, from a few thousand of them.
 *  @param {Float32Array} values @param {number[]} fractions */
export function percentiles(values, fractions) {
  const sorted = evenSample(values);
  return fractions.map((fraction) => at(sorted, fraction));
}

/** A colour scale over logarithms: `low` and `high` are logs; the bar may be even in metres. */
export class Scale {
  /** @param {number[][]} table @param {number} low @param {number} high @param {boolean} even
   *  @param {number} [middle] */
  constructor(table, low, high, even, middle = 0) {
    this.table = table;
    this.low = low;
    this.high = high;
    this.even = even;
    this.middle = middle;
    this.lookup = new Uint32Array(2048);
    for (let i = 0; i < 2048; i++) {
      const position = this.position(low + ((high - low) * i) / 2047);
      const [r, g, b] = table[Math.min(255, Math.max(0, Math.round(255 * position)))];
      this.lookup[i] = 0xff000000 | (b << 16) | (g << 8) | r;
    }
  }

  /** @param {number} log */
  position(log) {
    if (!this.even) return (log - this.low) / (this.high - this.low);
    const [low, high] = [Math.exp(this.low), Math.exp(this.high)];
    return (Math.exp(log) - low) / (high - low);
  }

  /** @param {number} log */
  colour(log) {
    const i = Math.round((2047 * (log - this.low)) / (this.high - this.low));
    const c = this.lookup[Math.min(2047, Math.max(0, i))];
    return `rgb(${c & 255} ${(c >> 8) & 255} ${(c >> 16) & 255})`;
  }
}

/** @param {number[][]} table @param {Float32Array[]} arrays */
export function depthScale(table, arrays) {
  const ends = arrays.map((values) => percentiles(values, [0.005, 0.995]));
  let low = Math.min(...ends.map((e) => e[0])), high = Math.max(...ends.map((e) => e[1]));
  if (high - low < 0.02) [low, high] = [low - 0.1, high + 0.1];
  return new Scale(table, low, high, high - low < Math.log(8));
}

/** ℓ around its median, as a factor. @param {number[][]} table @param {Float32Array} values */
export function factorScale(table, values) {
  const sorted = evenSample(values);
  const middle = at(sorted, 0.5);
  const reach = Math.max(at(sorted.map((v) => Math.abs(v - middle)).sort(), 0.995), 0.02);
  return new Scale(table, middle - reach, middle + reach, false, middle);
}

/** @param {any} canvas @param {Float32Array} values @param {Scale} scale @param {number} width
 *  @param {number} height */
export function paint(canvas, values, scale, width, height) {
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const step = 2047 / (scale.high - scale.low), { low, lookup } = scale;
  for (let i = 0; i < pixels.length; i++) {
    const at = (values[i] - low) * step;
    pixels[i] = at !== at ? 0xff8a8a8a : lookup[at < 0 ? 0 : at > 2047 ? 2047 : (at + 0.5) | 0];
  }
  context.putImageData(image, 0, 0);
}

/** Round numbers between two values, at most `most`.
 *  @param {number} low @param {number} high @param {number} most @param {boolean} logarithmic @returns {number[]} */
export function ticks(low, high, most, logarithmic) {
  if (logarithmic && high / low > 1.5) {
    for (const mantissas of [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]]) {
      const found = [];
      for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
        for (const m of mantissas)
          if (m * 10 ** e >= low && m * 10 ** e <= high) found.push(Number((m * 10 ** e).toPrecision(6)));
      }
      if (found.length >= 2 && found.length <= most) return found;
    }
  }
  const power = Math.floor(Math.log10((high - low) / most));
  for (let e = power; e < power + 3; e++) {
    for (const m of [1, 2, 5]) {
      const step = m * 10 ** e,
        first = Math.ceil(low / step - 1e-9),
        last = Math.floor(high / step + 1e-9);
      if (last - first + 1 <= most)
        return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
    }
  }
  return [];
}

/** Colours between a few given ones, 256 of them.
 *  @param {string[]} stops as #rrggbb @returns {number[][]} */
export function colourTable(stops) {
  const given = stops.map((s) => [1, 3, 5].map((i) => parseInt(s.slice(i, i + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (given.length - 1), k = Math.min(given.length - 2, Math.floor(at));
    return given[k].map((c, j) => Math.round(c + (given[k + 1][j] - c) * (at - k)));
  });
}

/** Small deviations are pale, large ones dark: another palette than that of depth, so that the two are not confused. */
export const UNCERTAINTY_TABLE = colourTable(["#fbfbf4", "#f3e3b4", "#e8b26a", "#cf7238", "#963a2a", "#4e1a2c"]);
