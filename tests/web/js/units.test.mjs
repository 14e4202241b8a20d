import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { UNITS, exactNumber, formatArea, formatMeasured, formatNumber, formatPercent, inUnit, plainMetres } from "../../../src/scalefield/web/static/units.js";

const { lengths } = JSON.parse(readFileSync(new URL("../../io/length_cases.json", import.meta.url), "utf8"));

test("plainMetres agrees with the server where it reads a text, and leaves the others to it", () => {
  const read = lengths.filter(({ text, unit = "m" }) => UNITS.includes(unit) && plainMetres(text, unit) !== null);
  assert.ok(read.length >= 6);
  for (const { text, unit = "m", metres } of read) assert.equal(plainMetres(text, unit), metres, text);
  for (const text of ["2.4", " 240 ", "0.054"]) assert.notEqual(plainMetres(text, "m"), null);
  for (const text of ["", "0", "-1", "2,4", "2.400 mm", "1e3", "2 m", "8'3\"", "1 200", ".5", "1000000000000"]) assert.equal(plainMetres(text, "m"), null, text);
});

test("exactNumber keeps every digit in every unit", () => {
  for (const metres of [1.2345, 0.054, 0.0034, 2.4384, 2.5146, 12.3456789, 1e-7, 4.42]) {
    for (const unit of UNITS) {
      const back = Number(exactNumber(metres, unit)) / inUnit(1, unit);
      assert.ok(Math.abs(back / metres - 1) < 1e-13, `${metres} ${unit} ${back}`);
    }
    assert.equal(Number(exactNumber(metres, "m")), metres);
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

test("formatArea in square units", () => {
  assert.equal(formatArea(2, "m"), "2 m²");
  assert.equal(formatArea(2, "cm"), "20000 cm²");
  assert.equal(formatArea(0.1, "ft"), "1.08 ft²");
});

test("formatPercent shows a sign, and ± where the value rounds to zero", () => {
  assert.deepEqual([0.001, -0.02, -0.0004, 0, Math.log(2)].map(formatPercent), ["+0.1 %", "−2.0 %", "±0.0 %", "±0.0 %", "+100 %"]);
});
