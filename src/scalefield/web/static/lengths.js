// Strict parser of numbers and lengths as users type them: ambiguous text is an error.
// scalefield.io.lengths follows the same rules; tests/io/length_cases.json tests both.

/** @typedef {"km" | "m" | "dm" | "cm" | "mm" | "yd" | "ft" | "in"} Unit */
/** @typedef {"point" | "comma"} DecimalMark */
/** @typedef {{text: string, metres: number}} Reading */
/** @typedef {{numbers: string[], fraction: [number, number] | null, unit: Unit | null, plain: boolean}} Part */

const LIMITS_M = [1e-12, 1e12];

/** @type {Record<string, Unit>} */
const UNIT_WORDS = {};
for (const [unit, words] of /** @type {[Unit, string][]} */ ([
  ["km", "km kilometre kilometres kilometer kilometers"],
  ["m", "m metre metres meter meters"],
  ["dm", "dm decimetre decimetres decimeter decimeters"],
  ["cm", "cm centimetre centimetres centimeter centimeters"],
  ["mm", "mm millimetre millimetres millimeter millimeters"],
  ["yd", "yd yds yard yards"],
  ["ft", "ft foot feet '"],
  ["in", 'in inch inches "'],
])) {
  for (const word of words.split(" ")) UNIT_WORDS[word] = unit;
}

// Metres as a ratio of whole numbers: 240 cm is then the number 2.4, and 8 ft 3 in 2.5146.
/** @type {Record<Unit, [number, number]>} */
const RATIO = {
  km: [1000, 1], m: [1, 1], dm: [1, 10], cm: [1, 100], mm: [1, 1000],
  yd: [9144, 10000], ft: [3048, 10000], in: [254, 10000],
};
/** @type {Record<string, number>} */
const METRIC = { km: 1000000, m: 1000, dm: 100, cm: 10, mm: 1 };
/** @type {Record<string, number>} */
const IMPERIAL = { yd: 36, ft: 12, in: 1 };

const SPACES = /[\s\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000]+/g;
/** @type {Record<string, string>} */
const VULGAR = { "½": "1/2", "¼": "1/4", "¾": "3/4", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8" };
const NUMBER = /^(?:[0-9]{1,3}(?: [0-9]{3})+(?![0-9])(?:[.,][0-9]+)?|[0-9]+(?:[.,][0-9]+)*\.?|[.,][0-9]+)(?:e[+-]?[0-9]+)?/;
const FRACTION = /^ ?([0-9]{1,3})\/([0-9]{1,3})(?![0-9/])/;
const UNIT = /^ ?([a-zµ²³°%]+\.?|'|")/;

/** A text that is not one length: `code` names the rule, `readings` what it could mean. */
export class LengthError extends Error {
  /** @param {string} code @param {string} sentence @param {Reading[]} [readings] */
  constructor(code, sentence, readings = []) {
    super(sentence);
    this.code = code;
    this.readings = readings;
  }
}

/** Lower case, single spaces, one sign each for feet, inches and minus; fractions as a/b.
 *  @param {string} text */
export function normalised(text) {
  return text
    .replace(/[½¼¾⅛⅜⅝⅞]/g, (sign) => ` ${VULGAR[sign]}`)
    .replace(SPACES, " ").trim().toLowerCase()
    .replace(/[\u2018\u2019\u02b9\u2032\u00b4`]/g, "'")
    .replace(/''|[\u201c\u201d\u201e\u02ba\u2033\u02dd]/g, '"')
    .replace(/[\u2212\u2012\u2013]/g, "-");
}

/** @param {string} mantissa @param {string} separator */
function mayGroup(mantissa, separator) {
  const [whole, rest] = mantissa.split(separator);
  return rest.length === 3 && whole.length >= 1 && whole.length <= 3 && whole[0] !== "0";
}

/** A number with thousands separators, without them; empty where the groups are not of three.
 *  @param {string} mantissa */
function ungrouped(mantissa) {
  if (/^[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?$/.test(mantissa)) return mantissa.replaceAll(",", "");
  if (/^[0-9]{1,3}(\.[0-9]{3})+(,[0-9]+)?$/.test(mantissa)) return mantissa.replaceAll(".", "").replace(",", ".");
  return "";
}

/** Every possible reading of an unsigned number, as text with a decimal point. A point is the
 *  decimal mark; a single comma before exactly three digits may be either, unless `mark` says.
 *  @param {string} text @param {DecimalMark | null} [mark] @param {boolean} [pointMayGroup]
 *  @returns {string[]} */
export function numberReadings(text, mark = null, pointMayGroup = false) {
  const at = text.indexOf("e");
  const exponent = at < 0 ? "" : text.slice(at);
  let mantissa = at < 0 ? text : text.slice(0, at);
  const spaced = mantissa.includes(" ");
  mantissa = mantissa.replaceAll(" ", "").replace(/\.$/, "");
  const separators = [...mantissa].filter((c) => c === "." || c === ",");
  const decimal = mantissa.replaceAll(",", ".") + exponent;
  if (!separators.length) return [decimal];
  if (separators.length > 1 || text.endsWith(".")) {
    const whole = exponent || spaced || text.endsWith(".") ? "" : ungrouped(mantissa);
    return whole ? [whole] : [];
  }
  const separator = separators[0];
  const uncertain = !exponent && !spaced && mayGroup(mantissa, separator);
  if (!uncertain || (separator === "." && !pointMayGroup)) return [decimal];
  const grouped = mantissa.replace(separator, "");
  if (mark === null) return [grouped, decimal];
  return [(mark === "point") === (separator === ".") ? decimal : grouped];
}

/** The decimal mark that a number proves to be used, if it proves one.
 *  @param {string} text @returns {DecimalMark | null} */
export function decimalMark(text) {
  const points = text.split(".").length - 1, commas = text.split(",").length - 1;
  if (points && commas) return text.lastIndexOf(".") > text.lastIndexOf(",") ? "point" : "comma";
  if (points + commas > 1) return points ? "comma" : "point"; // the other one groups thousands
  if (points + commas === 1 && !mayGroup(text, points ? "." : ",")) return points ? "point" : "comma";
  return null;
}

/** The length in metres that a text states; a bare number is in `unit`. Throws `LengthError`.
 *  @param {string} text @param {Unit} [unit]
 *  @param {{mark?: DecimalMark | null, pointMayGroup?: boolean | null}} [options] */
export function parseLength(text, unit = "m", { mark = null, pointMayGroup = null } = {}) {
  const { parts, negative } = split(text, mark, pointMayGroup);
  const shown = brief(text);
  const chains = chain(parts, unit, shown);
  const last = parts[parts.length - 1];
  /** @type {Map<string, number>} */
  const results = new Map();
  for (const number of last.numbers) {
    const numbers = [...parts.slice(0, -1).map((p) => Number(p.numbers[0])), Number(number)];
    if (last.fraction) numbers[numbers.length - 1] += last.fraction[0] / last.fraction[1];
    for (const units of chains) {
      const words = parts.slice(0, -1).map((p, i) => `${p.numbers[0]} ${units[i]}`);
      results.set([...words, `${number} ${units[units.length - 1]}`].join(" "), metresOf(numbers, units, shown));
    }
  }
  if (results.size > 1) {
    const readings = [...results].map(([words, metres]) => ({ text: words, metres }));
    const listed = readings.map((r) => `${r.text} (${Number(r.metres.toPrecision(6))} m)`).join(" or ");
    throw new LengthError("ambiguous", `“${shown}” can be ${listed}; write one`, readings);
  }
  const [metres] = results.values();
  if (negative || !(metres > 0)) throw new LengthError("sign", `a length above zero is wanted, found “${shown}”`);
  if (!(metres >= LIMITS_M[0] && metres <= LIMITS_M[1])) throw new LengthError("range", `a length of 1e-12 to 1e12 m is wanted, found “${shown}”`);
  return metres;
}

/** @param {string} text @param {DecimalMark | null} mark @param {boolean | null} pointMayGroup */
function split(text, mark, pointMayGroup) {
  let rest = normalised(text);
  const shown = brief(text), refusal = () => new LengthError("number", `a length such as 2.4 m is wanted, found “${shown}”`);
  if (!rest) throw new LengthError("empty", "a length such as 2.4 m is wanted, found nothing");
  const negative = rest.startsWith("-");
  if (/^[+-]/.test(rest)) rest = rest.slice(1).trimStart();
  /** @type {Part[]} */
  const parts = [];
  while (rest) {
    const number = NUMBER.exec(rest);
    let fraction = FRACTION.exec(rest), written = "0";
    if (fraction) rest = rest.slice(fraction[0].length);
    else if (number) {
      written = number[0];
      rest = rest.slice(written.length);
      fraction = /^[0-9]+$/.test(written) ? FRACTION.exec(rest) : null;
      if (rest.startsWith("/")) throw refusal();
      if (fraction) rest = rest.slice(fraction[0].length);
    } else throw refusal();
    const word = UNIT.exec(rest);
    /** @type {Unit | null} */
    let unit = null;
    if (word) {
      const name = word[1].replace(/\.$/, "");
      unit = Object.hasOwn(UNIT_WORDS, name) ? UNIT_WORDS[name] : null;
      if (!unit) throw new LengthError("unit", `“${word[1]}” is not a unit here; use m, cm, mm, km, ft, in or yd`);
      rest = rest.slice(word[0].length);
    } else if (rest && !rest.startsWith(" ")) throw refusal();
    const numbers = numberReadings(written, mark, pointMayGroup ?? unit === "mm");
    if (!numbers.length) throw new LengthError("number", `“${brief(written)}” is not a number`);
    /** @type {[number, number] | null} */
    const pair = fraction ? [Number(fraction[1]), Number(fraction[2])] : null;
    if (pair && (pair[1] === 0 || !unit || !(unit in IMPERIAL))) throw new LengthError("number", `fractions are read for ft, in and yd, found “${shown}”`);
    parts.push({ numbers, fraction: pair, unit, plain: /^[0-9]+$/.test(written) });
    rest = rest.trimStart();
  }
  if (!parts.length) throw refusal();
  return { parts, negative };
}

/** The unit of every part; several lists where the last one's unit is uncertain.
 *  @param {Part[]} parts @param {Unit} unit @param {string} shown @returns {Unit[][]} */
function chain(parts, unit, shown) {
  if (parts.length === 1) return [[parts[0].unit ?? unit]];
  const refusal = () => new LengthError("compound", `“${shown}” is not one length; write it as 2.4 m or 8 ft 3 in`);
  if (!parts.slice(0, -1).every((p) => p.plain && p.unit && !p.fraction)) throw refusal();
  const known = /** @type {Unit[]} */ (parts.map((p) => p.unit).filter(Boolean));
  const falling = [METRIC, IMPERIAL].some((order) => known.every((u, i) => u in order && (i === 0 || order[known[i - 1]] > order[u])));
  if (!falling) throw refusal();
  const last = parts[parts.length - 1];
  if (last.unit) return [known];
  /** @type {Record<string, Unit[]>} */
  const implied = { "km 3": ["m"], "m 1": ["cm", "dm"], "m 2": ["cm"], "m 3": ["mm"], "cm 1": ["mm"], "ft 1": ["in"], "ft 2": ["in"] };
  const minors = implied[`${known[known.length - 1]} ${last.numbers[0].split(".")[0].length}`];
  if (last.numbers.length > 1 || !minors) throw refusal();
  return minors.map((minor) => [...known, minor]);
}

/** The sum of all parts, added up in the smallest unit.
 *  @param {number[]} numbers @param {Unit[]} units @param {string} shown */
function metresOf(numbers, units, shown) {
  const order = units[0] in METRIC ? METRIC : IMPERIAL, smallest = units[units.length - 1];
  let total = 0;
  numbers.forEach((number, i) => {
    if (i > 0 && number >= Math.floor(order[units[i - 1]] / order[units[i]])) {
      throw new LengthError("compound", `${number} ${units[i]} after ${units[i - 1]}: found “${shown}”`);
    }
    total += number * Math.floor(order[units[i]] / order[smallest]);
  });
  const [numerator, denominator] = RATIO[smallest];
  return (total * numerator) / denominator;
}

/** @param {string} text */
const brief = (text) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= 40 ? line : `${line.slice(0, 40)}…`;
};

// ---- writing -----------------------------------------------------------------------------------

/** @param {number} metres @param {Unit} unit */
export const inUnit = (metres, unit) => (metres * RATIO[unit][1]) / RATIO[unit][0];

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
  /** @type {Record<string, number>} */
  const decimals = { m: 2, cm: 0, mm: 0, ft: 2, in: 1 };
  const least = decimals[unit] ?? 2, size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-6) return value.toPrecision(3);
  const wanted = Math.max(least, 2 - Math.floor(Math.log10(size)));
  const shown = size >= 10 ** (2 - least) ? value.toFixed(least) : value.toFixed(Math.min(wanted, 12));
  return shown;
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
