// Lengths as people write them. Inside the page everything is in metres.

const METRES = { m: 1, cm: 0.01, mm: 0.001, ft: 0.3048, "'": 0.3048, in: 0.0254, '"': 0.0254 };

/** Metres of "2.5", "2,5 m", "250cm", "8 ft 3 in", 8'3"; null if it is no length above zero. */
export function parseLength(text, unit) {
  const parts = [...text.trim().replaceAll(",", ".").toLowerCase().matchAll(/([\d.]+)\s*(mm|cm|m|ft|in|'|")?\s*/gy)];
  const read = parts.map((p) => p[0]).join("");
  if (!parts.length || read.length !== text.trim().length) return null;
  let metres = 0;
  for (const [i, [, number, suffix]] of parts.entries()) {
    const value = Number(number);
    if (Number.isNaN(value) || (i > 0 && !suffix)) return null;
    metres += value * METRES[suffix || unit];
  }
  return Number.isFinite(metres) && metres > 0 ? metres : null;
}

/** Metres in the chosen unit, with as many digits as the eye wants. */
export function formatLength(metres, unit) {
  return `${formatNumber(metres, unit)} ${unit}`;
}

export function formatNumber(metres, unit) {
  const value = metres / METRES[unit];
  if (unit === "cm") return value.toFixed(value < 10 ? 1 : 0);
  return value.toFixed(value < 100 ? 2 : 1);
}

/** "+8 %" for log 1.08. */
export function formatPercent(log) {
  const percent = 100 * Math.expm1(log);
  const size = Math.abs(percent).toFixed(Math.abs(percent) < 1 ? 1 : 0);
  return Number(size) === 0 ? "0 %" : `${percent < 0 ? "−" : "+"}${size} %`;
}

export const inUnit = (metres, unit) => metres / METRES[unit];
