// Strict parser of tables of anchors (CSV and similar formats): ambiguous text is an error.
// scalefield.io.anchor_tables follows the same rules; tests/io/length_cases.json tests both.

import { LengthError, decimalMark, normalised, numberReadings, parseLength } from "./lengths.js";

/** @typedef {import("./lengths.js").Unit} Unit */
/** @typedef {import("./lengths.js").DecimalMark} DecimalMark */
/** @typedef {{u: number, v: number, depth_m: number, sigma_m: number | null}} AnchorRow */
/** @typedef {{name: "u" | "v" | "depth_m" | "sigma_m", index: number, title: string, unit: Unit}} Column */
/** @typedef {{text: string, quoted: boolean}} Cell */
/** @typedef {{line: number, cells: Cell[]}} Row */

/** @param {string} words @param {string} name @returns {Record<string, string>} */
const all = (words, name) => Object.fromEntries(words.split(" ").map((w) => [w, name]));
const PIXEL_NAMES = { ...all("u x col column pixel_x px_x u_px x_px", "u"), ...all("v y row line pixel_y px_y v_px y_px", "v") };
const LENGTH_NAMES = { ...all("depth z distance", "depth_m"), ...all("sigma std depth_sigma depth_std sigma_depth", "sigma_m") };
/** @type {Record<string, string>} */
const HEADER_UNITS = { km: "km", m: "m", cm: "cm", mm: "mm", ft: "ft", in: "in", yd: "yd", metres: "m", meters: "m", metre: "m", meter: "m", feet: "ft", inches: "in" };

/** Delimiters of the cells of a line, in the order in which they are tried. @type {Record<string, string>} */
const DELIMITERS = { "\t": "tabs", ";": "semicolons", ",": "commas", " ": "spaces" };

const PLAIN = /^-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?$/;
const STARTS_NUMBER = /^[+\-−.,]*[0-9½¼¾]/;
const UNSIGNED = /^(?:[0-9]{1,3}(?: [0-9]{3})+|[0-9]*(?:[.,][0-9]+)*\.?)(?:e[+-]?[0-9]+)?$/;
const NUMBER_AT_START = /[0-9.,]*[0-9]/;

/** A text that is not one table of anchors; `code` names the rule that it breaks. */
export class TableError extends Error {
  /** @param {string} code @param {string} sentence */
  constructor(code, sentence) {
    super(sentence);
    this.code = code;
  }
}

/** Text in UTF-8 or, with a byte order mark or with ASCII in every second byte, UTF-16.
 *  @param {ArrayBuffer} buffer */
export function decodeText(buffer) {
  const bytes = new Uint8Array(buffer);
  let encoding = "utf-8";
  if (bytes[0] === 0xff && bytes[1] === 0xfe) encoding = "utf-16le";
  else if (bytes[0] === 0xfe && bytes[1] === 0xff) encoding = "utf-16be";
  else if (bytes.subarray(0, 64).includes(0)) encoding = bytes[0] === 0 ? "utf-16be" : "utf-16le";
  try {
    return new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    throw new TableError("encoding", "not a text file in UTF-8 or UTF-16");
  }
}

/** The anchors of a table with their lines, or a `TableError` that names the line.
 *  @param {string} text @returns {(AnchorRow & {line: number})[]} */
export function parseAnchorTable(text) {
  const { comment, lines } = contentLines(text);
  if (!lines.length) throw new TableError("empty", "wanted lines of u,v,depth_m, found an empty file");
  const separator = separatorOf(lines.map((l) => l.text));
  checkDelimiters(lines, separator);
  const rows = lines.map(({ line, text: content }) => ({ line, cells: cellsOf(content, separator, line) }));
  /** @type {string[] | null} */
  let titles = null;
  if (!rows[0].cells.some((cell) => STARTS_NUMBER.test(cell.text))) titles = /** @type {Row} */ (rows.shift()).cells.map((c) => c.text);
  else if (comment) titles = comment;
  const count = titles ? titles.length : rows[0].cells.length;
  const columns = columnsOf(titles, count);
  for (const row of rows) checkCount(row, count, separator);
  if (!titles) checkDecimalComma(rows, separator);
  const mark = markOf(rows, columns);
  return rows.map((row) => {
    /** @type {AnchorRow & {line: number}} */
    const anchor = { u: NaN, v: NaN, depth_m: NaN, sigma_m: null, line: row.line };
    for (const column of columns) anchor[column.name] = /** @type {number} */ (valueOf(column, row, mark, separator));
    return anchor;
  });
}

/** @param {string} text */
function contentLines(text) {
  /** @type {string[] | null} */
  let comment = null;
  /** @type {{line: number, text: string}[]} */
  const lines = [];
  text.replace(/^\ufeff/, "").split(/\r\n|\r|\n/).forEach((content, i) => {
    const stripped = content.trim();
    if (/^(#|\/\/)/.test(stripped)) {
      const words = stripped.replace(/^[#/ \t]+/, "").split(/[\s,;]+/).filter(Boolean);
      const named = words.map((w) => titleOf(w).name);
      if (!lines.length && ["u", "v", "depth_m"].every((n) => named.includes(n))) comment = words;
    } else if (stripped) lines.push({ line: i + 1, text: content.replace(/^[ \ufeff]+|[ \ufeff]+$/g, "") });
  });
  return { comment, lines };
}

/** @param {string[]} lines */
function separatorOf(lines) {
  const outside = lines.map(unquoted);
  return Object.keys(DELIMITERS).find((candidate) => outside.some((l) => l.includes(candidate))) ?? " ";
}

/** The line without the cells in quotation marks. @param {string} line */
const unquoted = (line) => line.replace(/(^|[\t;,])\s*"[^"]*"/g, "$1");

/** Refuse a table in which a line has three cells or more, but by another delimiter.
 *  @param {{line: number, text: string}[]} lines @param {string} separator */
function checkDelimiters(lines, separator) {
  if (separator === " ") return;
  const reference = lines.find(({ text }) => unquoted(text).includes(separator))?.line;
  for (const { line, text } of lines) {
    const content = unquoted(text);
    if (content.includes(separator)) continue;
    const other = Object.keys(DELIMITERS).find((d) => d !== separator && content.trim().split(d === " " ? /\s+/ : d).length >= 3);
    if (other) throw new TableError("delimiters", `line ${line} has ${DELIMITERS[other]} between its cells and line ${reference} has ${DELIMITERS[separator]}; use one of them in all lines`);
  }
}

/** The cells of a line; a cell that starts with a quotation mark ends with one.
 *  @param {string} content @param {string} separator @param {number} line @returns {Cell[]} */
function cellsOf(content, separator, line) {
  const bare = (/** @type {string} */ text) => ({ text: text.trim(), quoted: false });
  if (separator === " ") return content.trim().split(/\s+/).map(bare);
  if (!content.includes('"')) return content.split(separator).map(bare);
  const cells = [];
  let rest = content;
  for (;;) {
    const quoted = /^\s*"((?:[^"]|"")*)"\s*/.exec(rest);
    if (quoted && (quoted[0].length === rest.length || rest[quoted[0].length] === separator)) {
      cells.push({ text: quoted[1].replaceAll('""', '"').trim(), quoted: true });
      rest = rest.slice(quoted[0].length);
    } else if (rest.trimStart().startsWith('"')) {
      throw new TableError("quote", `line ${line}: a quotation mark is not closed`);
    } else {
      const end = rest.indexOf(separator);
      cells.push(bare(end < 0 ? rest : rest.slice(0, end)));
      rest = end < 0 ? "" : rest.slice(end);
    }
    if (!rest) return cells;
    rest = rest.slice(1);
  }
}

/** The meaning of a column title: its name here, its unit, and the problem with it.
 *  @param {string} title @returns {{name: string, unit: Unit | null, wrong: string}} */
function titleOf(title) {
  let plain = title.trim().toLowerCase().replace(/[\s-]+/g, "_");
  const bracketed = /^([a-z_]+?)_*[([]([a-z]+)[)\]]$/.exec(plain);
  if (bracketed) plain = `${bracketed[1]}_${bracketed[2]}`;
  const at = plain.lastIndexOf("_"), stem = plain.slice(0, Math.max(0, at)), unit = plain.slice(at + 1);
  const has = (/** @type {object} */ names, /** @type {string} */ key) => Object.hasOwn(names, key);
  const name = has(PIXEL_NAMES, plain) ? PIXEL_NAMES[plain] : has(LENGTH_NAMES, plain) ? LENGTH_NAMES[plain] : "";
  let wrong = "";
  if (!name && has(LENGTH_NAMES, stem) && has(HEADER_UNITS, unit)) return { name: LENGTH_NAMES[stem], unit: /** @type {Unit} */ (HEADER_UNITS[unit]), wrong };
  if (!name && has(LENGTH_NAMES, stem)) wrong = `“${brief(title, 30)}” has a unit that is not known`;
  else if (!name && ["u", "v", "x", "y"].includes(stem) && has(HEADER_UNITS, unit)) wrong = `“${brief(title, 30)}” is a length, and pixels are wanted`;
  else if (["range", "range_m", "slant", "slant_m"].includes(plain)) wrong = `“${brief(title, 30)}” is along the ray; depth is along the optical axis`;
  return { name, unit: null, wrong };
}

/** @param {string[] | null} titles @param {number} width @returns {Column[]} */
function columnsOf(titles, width) {
  if (!titles) {
    if (width !== 3 && width !== 4) throw new TableError("columns", `without a header wanted u, v, depth_m[, sigma_m] in metres, found ${width} columns`);
    return /** @type {Column["name"][]} */ (["u", "v", "depth_m", "sigma_m"]).slice(0, width).map((name, index) => ({ name, index, title: name, unit: "m" }));
  }
  /** @type {Map<string, Column & {stated: Unit | null}>} */
  const found = new Map();
  const header = brief(titles.join(", "), 80);
  titles.forEach((title, index) => {
    const { name, unit, wrong } = titleOf(title);
    if (wrong) throw new TableError("header", `the column ${wrong}; wanted u, v, depth_m`);
    if (!name) return;
    if (found.has(name)) throw new TableError("header", `two columns give ${name}: ${header}`);
    found.set(name, { name: /** @type {Column["name"]} */ (name), index, title: title.trim(), unit: unit ?? "m", stated: unit });
  });
  const missing = ["u", "v", "depth_m"].filter((name) => !found.has(name));
  if (missing.length) throw new TableError("header", `wanted the header u,v,depth_m[,sigma_m], which lacks ${missing.join(", ")}; found ${header}`);
  const depth = found.get("depth_m"), sigma = found.get("sigma_m");
  if (sigma && !sigma.stated && depth?.stated && depth.stated !== "m") throw new TableError("header", `${depth.title} states its unit, so sigma must too: sigma_mm or such`);
  return [...found.values()];
}

/** @param {Row} row @param {number} count @param {string} separator */
function checkCount({ line, cells }, count, separator) {
  if (cells.length >= count && !cells.slice(count).some((cell) => cell.text)) return;
  const hint = separator === "," && cells.length > count ? "; numbers with a decimal comma need semicolons or tabs between them" : "";
  throw new TableError("columns", `line ${line}: ${count} cells wanted, ${cells.length} found${hint}`);
}

/** Refuse "10,20,1,5" without a header: depth 1 with sigma 5, or depth 1.5.
 *  @param {Row[]} rows @param {string} separator */
function checkDecimalComma(rows, separator) {
  const { line, cells } = rows[0];
  if (separator !== "," || cells.filter((c) => c.text).length < 4 || rows.some((r) => r.cells.some((c) => c.quoted || c.text.includes(".")))) return;
  const [u, v, depth, sigma] = cells.map((c) => c.text);
  throw new TableError("ambiguous", `line ${line}: ${u},${v} can have depth ${depth} m with sigma ${sigma} m, or depth ${depth}.${sigma} m; add a header`);
}

/** The decimal mark that the numbers of the file prove; a file may not prove both.
 *  @param {Row[]} rows @param {Column[]} columns */
function markOf(rows, columns) {
  /** @type {Map<DecimalMark, string>} */
  const proof = new Map();
  for (const { line, cells } of rows) {
    for (const { index } of columns) {
      const { text } = cells[index];
      if (!text.includes(",") && !text.includes(".")) continue;
      const match = NUMBER_AT_START.exec(text), mark = match && decimalMark(match[0]);
      if (mark && !proof.has(mark)) proof.set(mark, `${brief(text, 20)} in line ${line}`);
    }
  }
  if (proof.size > 1) throw new TableError("ambiguous", `the decimal mark is a point (${proof.get("point")}) and a comma (${proof.get("comma")})`);
  return [...proof.keys()][0] ?? null;
}

/** @param {Column} column @param {Row} row @param {DecimalMark | null} mark @param {string} separator */
function valueOf(column, { line, cells }, mark, separator) {
  const { text } = cells[column.index];
  if (column.name === "sigma_m" && !text) return null;
  const plain = PLAIN.test(text), place = `line ${line}: ${column.title}`;
  if (column.name === "u" || column.name === "v") return plain && text.length <= 15 ? Number(text) : pixelOf(text, mark, place);
  const mayGroup = column.unit === "mm" && separator !== ",";
  if (plain && !mayGroup && column.unit === "m") {
    const length = Number(text);
    if (length >= 1e-12 && length <= 1e12) return length;
  }
  try {
    return parseLength(text, column.unit, { mark, pointMayGroup: mayGroup });
  } catch (e) {
    if (!(e instanceof LengthError)) throw e;
    const unreadable = ["number", "unit", "compound", "empty"].includes(e.code);
    throw new TableError(e.code, unreadable ? `${place} is not a length: “${brief(text, 40)}”` : `${place}: ${e.message}`);
  }
}

/** @param {string} text @param {DecimalMark | null} mark @param {string} place */
function pixelOf(text, mark, place) {
  const plain = normalised(text), unsigned = /^[+-]/.test(plain) ? plain.slice(1) : plain;
  const readings = unsigned && UNSIGNED.test(unsigned) ? numberReadings(unsigned, mark) : [];
  if (readings.length > 1) throw new TableError("ambiguous", `${place} “${brief(text, 40)}” can be ${readings.join(" or ")}; write one`);
  const value = readings.length && readings[0] ? Number(readings[0]) : NaN;
  if (Number.isNaN(value)) throw new TableError("number", `${place} is not a number: “${brief(text, 40)}”`);
  if (!Number.isFinite(value)) throw new TableError("range", `${place} is too large: “${brief(text, 40)}”`);
  return plain.startsWith("-") ? -value : value;
}

/** @param {string} text @param {number} most */
const brief = (text, most) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= most ? line : `${line.slice(0, most)}…`;
};

/** Refuse anchors outside the photo, by their line.
 *  @template {{u: number, v: number, line: number}} T
 *  @param {T[]} rows @param {{width: number, height: number}} photo */
export function checkInside(rows, { width, height }) {
  const outside = rows.filter(({ u, v }) => u < -0.5 || v < -0.5 || u >= width - 0.5 || v >= height - 0.5);
  if (!outside.length) return rows;
  const [{ u, v, line }] = outside;
  const swapped = rows.every((r) => r.u >= -0.5 && r.v >= -0.5 && r.u < height - 0.5 && r.v < width - 0.5);
  throw new TableError("outside", `line ${line}: u=${u}, v=${v} lies outside the photo of ${width}×${height} pixels${swapped ? "; with u and v swapped, all would lie inside" : ""}`);
}

/** @param {{u: number, v: number, depth_m: number, sigma_m?: number | null}[]} anchors */
export function writeAnchorTable(anchors) {
  const sigma = anchors.some((a) => a.sigma_m);
  const lines = anchors.map((a) => [a.u, a.v, a.depth_m, ...(sigma ? [a.sigma_m ?? ""] : [])].join(","));
  return [sigma ? "u,v,depth_m,sigma_m" : "u,v,depth_m", ...lines, ""].join("\n");
}
