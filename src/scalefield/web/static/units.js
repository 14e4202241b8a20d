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

const INCH_M = 0.0254;

/** Feet and inches as on a tape: to an eighth of an inch below ten feet, to an inch below a hundred.
 *  @param {number} metres */
function feetAndInches(metres) {
  const inches = metres / INCH_M, parts = inches < 120 ? 8 : 1, all = Math.round(inches * parts);
  if (inches >= 1200) return `${Math.round(inches / 12)} ft`;
  if (!all) return `${inches ? inches.toPrecision(2) : 0} in`;
  const feet = Math.floor(all / (12 * parts)),
    whole = Math.floor(all / parts) - 12 * feet,
    eighths = all % parts;
  const shrink = eighths % 4 === 0 ? 4 : eighths % 2 === 0 ? 2 : 1,
    fraction = eighths ? `${eighths / shrink}/${8 / shrink}` : "";
  const rest = [whole || "", fraction].filter(Boolean).join(" ");
  return [feet ? `${feet} ft` : "", rest ? `${rest} in` : ""].filter(Boolean).join(" ");
}

/** A length for reading, without its unit but for feet: two decimals of a metre, and never fewer than three significant
 *  digits. @param {number} metres @param {Unit} unit */
export function formatNumber(metres, unit) {
  const value = inUnit(metres, unit);
  if (!Number.isFinite(value)) return "–";
  if (unit === "ft") return feetAndInches(metres);
  const least = { m: 2, cm: 0, in: 1 }[unit], size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-6) return value.toPrecision(3);
  const wanted = Math.max(least, 2 - Math.floor(Math.log10(size)));
  return size >= 10 ** (2 - least) ? value.toFixed(least) : value.toFixed(Math.min(wanted, 12));
}

/** @param {number} metres @param {Unit} unit */
export const formatLength = (metres, unit) =>
  unit === "ft" ? formatNumber(metres, unit) : `${formatNumber(metres, unit)} ${unit}`;

/** A typed length with its unit. @param {string} text @param {Unit} unit of a number that has none */
export const withUnit = (text, unit) =>
  /\d\s*$/.test(text) && /^[\d\s.,]*$/.test(text) ? `${text.trim()} ${unit}` : text.trim();

const IMPERIAL = /ft|feet|foot|in|['"’”′″]/i;

/** A measured length as it was typed, where the page shows that system of units; else with the digits it was given, at
 *  most six of them. @param {{depth_m: number, text?: string}} anchor @param {Unit} unit */
export function formatMeasured({ depth_m, text }, unit) {
  if (text && IMPERIAL.test(text) === IMPERIAL.test(unit)) return text;
  const read = formatLength(depth_m, unit);
  if (unit === "ft") return read;
  const exact = exactNumber(Number(depth_m.toPrecision(6)), unit),
    short = String(Number(inUnit(depth_m, unit).toPrecision(6)));
  return short.length + 1 + unit.length > read.length && exact.length <= 8 ? `${short} ${unit}` : read;
}

/** @type {[string, number][]} */
const SLIPS = [["m", 1], ["cm", 0.01], ["mm", 0.001], ["ft", 0.3048], ["in", INCH_M]];
const SLIP_LOG = Math.log(2.2); // from this ratio to what is expected another unit is looked for

/** The length in another unit that agrees with what is expected, where the one that was read does not.
 *  @param {{depth_m: number, text?: string}} anchor @param {Unit} unit @param {number} expected_m
 *  @returns {{text: string, metres: number} | null} */
export function unitSlip({ depth_m, text }, unit, expected_m) {
  const off = (/** @type {number} */ metres) => Math.abs(Math.log(metres / expected_m));
  const number = /^[\d.]+(?= ?[a-z]*$)/.exec(text ?? "")?.[0] ?? String(Number(inUnit(depth_m, unit).toPrecision(6)));
  if (!(off(depth_m) > SLIP_LOG)) return null;
  const found = SLIPS.map(([name, size]) => ({
    text: `${number} ${name}`, metres: Number((Number(number) * size).toPrecision(15)),
  })).sort((a, b) => off(a.metres) - off(b.metres))[0];
  return off(found.metres) < off(depth_m) / 3 ? found : null;
}

/** @param {number} squareMetres @param {Unit} unit */
export function formatArea(squareMetres, unit) {
  const value = inUnit(inUnit(squareMetres, unit), unit);
  const digits = { useGrouping: false, maximumFractionDigits: 6 };
  return `${Number(value.toPrecision(3)).toLocaleString("en", digits)} ${unit}²`;
}

/** A difference of logarithms as a percentage with its sign; ± where it rounds to zero. @param {number} log */
export function formatPercent(log) {
  const percent = 100 * Math.expm1(log);
  const size = Math.abs(percent).toFixed(Math.abs(percent) < 9.95 ? 1 : 0);
  return `${Number(size) === 0 ? "±" : percent < 0 ? "−" : "+"}${size} %`;
}
