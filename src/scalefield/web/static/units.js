// Lengths in the units of the page, as text; the server reads what users type, but for plain numbers.

/** @typedef {"m" | "cm" | "ft" | "in"} Unit */

/** @type {Unit[]} */
export const UNITS = ["m", "cm", "ft", "in"];

// Metres as a ratio of whole numbers: 240 cm is then the number 2.4.
/** @type {Record<Unit, [number, number]>} */
const METRES_PER_UNIT = { m: [1, 1], cm: [1, 100], ft: [3048, 10000], in: [254, 10000] };

/** The metres of a plain number such as 2.4, which has one reading; null for any other text.
 *  @param {string} text @param {Unit} unit */
export function plainMetres(text, unit) {
  if (!/^[0-9]{1,9}(\.[0-9]{1,9})?$/.test(text.trim())) return null;
  const [numerator, denominator] = METRES_PER_UNIT[unit];
  return (Number(text) * numerator) / denominator || null; // zero is refused by the server
}

/** @param {number} metres @param {Unit} unit */
export const inUnit = (metres, unit) => (metres * METRES_PER_UNIT[unit][1]) / METRES_PER_UNIT[unit][0];

/** Every digit of a length, in a unit: what an input field holds, so that reading it changes nothing.
 *  @param {number} metres @param {Unit} unit */
export function exactNumber(metres, unit) {
  return unit === "m" ? String(metres) : String(Number(inUnit(metres, unit).toPrecision(14)));
}

/** A length for reading: two decimals of a metre, and never fewer than three significant digits.
 *  @param {number} metres @param {Unit} unit */
export function formatNumber(metres, unit) {
  const value = inUnit(metres, unit);
  if (!Number.isFinite(value)) return "–";
  const least = { m: 2, cm: 0, ft: 2, in: 1 }[unit], size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-6) return value.toPrecision(3);
  const wanted = Math.max(least, 2 - Math.floor(Math.log10(size)));
  return size >= 10 ** (2 - least) ? value.toFixed(least) : value.toFixed(Math.min(wanted, 12));
}

/** @param {number} metres @param {Unit} unit */
export const formatLength = (metres, unit) => `${formatNumber(metres, unit)} ${unit}`;

/** A measured value with the digits it was given, at most six of them.
 *  @param {number} metres @param {Unit} unit */
export function formatMeasured(metres, unit) {
  const read = formatNumber(metres, unit), exact = exactNumber(Number(metres.toPrecision(6)), unit);
  const short = String(Number(inUnit(metres, unit).toPrecision(6)));
  return `${short.length > read.length && exact.length <= 8 ? short : read} ${unit}`;
}

/** @param {number} squareMetres @param {Unit} unit */
export function formatArea(squareMetres, unit) {
  const value = inUnit(inUnit(squareMetres, unit), unit);
  return `${Number(value.toPrecision(3)).toLocaleString("en", { useGrouping: false, maximumFractionDigits: 6 })} ${unit}²`;
}

/** A difference of logarithms as a percentage with its sign; ± where it rounds to zero. @param {number} log */
export function formatPercent(log) {
  const percent = 100 * Math.expm1(log);
  const size = Math.abs(percent).toFixed(Math.abs(percent) < 9.95 ? 1 : 0);
  return `${Number(size) === 0 ? "±" : percent < 0 ? "−" : "+"}${size} %`;
}
