import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { LengthError, exactNumber, formatMeasured, formatNumber, formatPercent, parseLength } from "../../../src/scalefield/web/static/lengths.js";
import { TableError, checkInside, decodeText, parseAnchorTable, writeAnchorTable } from "../../../src/scalefield/web/static/table.js";

const cases = JSON.parse(readFileSync(new URL("../../io/length_cases.json", import.meta.url), "utf8"));

for (const { text, unit = "m", metres, error, readings = [] } of cases.lengths) {
  test(`parseLength reads or refuses ${JSON.stringify(text)}`, () => {
    if (metres !== undefined) return assert.equal(parseLength(text, unit), metres);
    assert.throws(() => parseLength(text, unit), (e) => {
      assert.ok(e instanceof LengthError);
      assert.equal(e.code, error);
      assert.deepEqual(e.readings.map((r) => r.text), readings);
      return true;
    });
  });
}

for (const wanted of cases.tables) {
  test(`parseAnchorTable reads or refuses ${JSON.stringify(wanted.text)}`, () => {
    if (!wanted.error) {
      const rows = parseAnchorTable(wanted.text);
      for (const name of ["u", "v", "depth_m"]) assert.deepEqual(rows.map((r) => r[name]), wanted[name]);
      assert.deepEqual(rows.map((r) => r.sigma_m), wanted.sigma_m ?? rows.map(() => null));
      return;
    }
    assert.throws(() => parseAnchorTable(wanted.text), (e) => {
      assert.ok(e instanceof TableError, String(e));
      assert.equal(e.code, wanted.error);
      assert.ok(e.message.includes(wanted.says ?? ""), e.message);
      return true;
    });
  });
}

test("decodeText reads UTF-8 and UTF-16, with and without a byte order mark", () => {
  const text = "u;v;depth_m\n10;20;1,5\n";
  const utf16 = (little, mark) => {
    const view = new DataView(new ArrayBuffer(2 * text.length + (mark ? 2 : 0)));
    [...(mark ? "\ufeff" : ""), ...text].forEach((c, i) => view.setUint16(2 * i, c.charCodeAt(0), little));
    return view.buffer;
  };
  const buffers = [new TextEncoder().encode(text).buffer, new TextEncoder().encode(`\ufeff${text}`).buffer];
  for (const little of [true, false]) for (const mark of [true, false]) buffers.push(utf16(little, mark));
  for (const buffer of buffers) assert.equal(parseAnchorTable(decodeText(buffer))[0].depth_m, 1.5);
  assert.throws(() => decodeText(new Uint8Array([0xff, 117, 44]).buffer), { code: "encoding" });
});

test("exactNumber keeps every digit in every unit", () => {
  for (const metres of [1.2345, 0.054, 0.0034, 2.4384, 2.5146, 12.3456789, 1e-7, 4.42]) {
    for (const unit of ["m", "cm", "mm", "ft", "in"]) {
      const back = parseLength(exactNumber(metres, unit), unit, { pointMayGroup: false });
      assert.ok(Math.abs(back / metres - 1) < 1e-13, `${metres} ${unit} ${back}`);
    }
    assert.equal(parseLength(exactNumber(metres, "m")), metres);
  }
});

test("formatNumber never rounds small lengths away", () => {
  assert.equal(formatNumber(2.4, "m"), "2.40");
  assert.equal(formatNumber(0.054, "m"), "0.0540");
  assert.equal(formatNumber(0.0034, "m"), "0.00340");
  assert.equal(formatNumber(123.456, "m"), "123.46");
  assert.equal(formatNumber(2.96, "cm"), "296");
  assert.equal(formatMeasured(1.2345, "m"), "1.2345 m");
  assert.equal(formatMeasured(2.4, "m"), "2.40 m");
  assert.equal(formatMeasured(2.9591, "ft"), "9.71 ft");
});

test("checkInside names the line and the swap", () => {
  const photo = { width: 640, height: 480 };
  assert.throws(() => checkInside(parseAnchorTable("1,2,3\n700,5,2"), photo), /line 2: u=700/);
  assert.throws(() => checkInside(parseAnchorTable("1,600,3"), photo), /swapped/);
  assert.equal(checkInside(parseAnchorTable("639.4,479.4,3"), photo).length, 1);
});

test("writeAnchorTable is read back exactly", () => {
  const anchors = [{ u: 1.5, v: 2, depth_m: 0.1 + 0.2, sigma_m: null }, { u: 3, v: 4, depth_m: 1e-7, sigma_m: 0.01 }];
  const back = parseAnchorTable(writeAnchorTable(anchors));
  assert.deepEqual(back.map(({ line, ...a }) => a), anchors);
});

test("formatPercent shows a sign, and ± where the value rounds to zero", () => {
  assert.deepEqual([0.001, -0.02, -0.0004, 0, Math.log(2)].map(formatPercent), ["+0.1 %", "−2.0 %", "±0.0 %", "±0.0 %", "+100 %"]);
});
