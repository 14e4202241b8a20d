import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { UNITS, exactNumber, formatArea, formatLength, formatMeasured, formatNumber, formatPercent, inUnit, plainMetres, unitSlip, withUnit } from "../../../src/scalefield/web/static/units.js";

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
  assert.equal(formatMeasured({ depth_m: 1.2345 }, "m"), "1.2345 m");
  assert.equal(formatMeasured({ depth_m: 2.4 }, "m"), "2.40 m");
});

test("feet and inches as on a tape", () => {
  const shown = [[2.3622, "7 ft 9 in"], [2.9591, "9 ft 8 1/2 in"], [0.3048, "1 ft"], [0.0254, "1 in"], [0.003175, "1/8 in"],
    [3.6391, "11 ft 11 in"], [30.47, "100 ft"], [40, "131 ft"], [0.0001, "0.0039 in"], [0, "0 in"], [0.30479, "1 ft"]];
  for (const [metres, text] of shown) assert.equal(formatLength(metres, "ft"), text);
});

test("a distance is shown as it was typed, where the page has that system of units", () => {
  assert.equal(withUnit("7 ft 9 in", "m"), "7 ft 9 in");
  assert.equal(withUnit(" 2,4 ", "m"), "2,4 m");
  assert.equal(withUnit("5 ft 10", "m"), "5 ft 10");
  const typed = { depth_m: 2.3622, text: "7 ft 9 in" };
  assert.deepEqual(["ft", "in", "m", "cm"].map((unit) => formatMeasured(typed, unit)), ["7 ft 9 in", "7 ft 9 in", "2.3622 m", "236.22 cm"]);
  assert.equal(formatMeasured({ depth_m: 2.4, text: "2.4 m" }, "ft"), "7 ft 10 1/2 in");
});

test("unitSlip finds the unit that agrees, and none where the reading may be right", () => {
  const slip = (text, depth_m, expected, unit = "m") => unitSlip({ depth_m, text }, unit, expected)?.text ?? null;
  assert.equal(slip("237 m", 237, 2.2), "237 cm");
  assert.equal(slip("2370 m", 2370, 2.2), "2370 mm");
  assert.equal(slip("7.8 m", 7.8, 2.3), "7.8 ft");
  assert.equal(slip("2.4 ft", 0.7315, 2.3), "2.4 m");
  assert.equal(slip(undefined, 237, 2.2), "237 cm");
  for (const expected of [237, 200, 150]) assert.equal(slip("237 m", 237, expected), null);
  assert.equal(slip("2.4 m", 2.4, 240), null); // that one is not in kilometres or so
  assert.equal(unitSlip({ depth_m: 237, text: "237 m" }, "m", 2.2).metres, 2.37);
});

test("formatArea in square units", () => {
  assert.equal(formatArea(2, "m"), "2 m²");
  assert.equal(formatArea(2, "cm"), "20000 cm²");
  assert.equal(formatArea(0.1, "ft"), "1.08 ft²");
});

test("formatPercent shows a sign, and ± where the value rounds to zero", () => {
  assert.deepEqual([0.001, -0.02, -0.0004, 0, Math.log(2)].map(formatPercent), ["+0.1 %", "−2.0 %", "±0.0 %", "±0.0 %", "+100 %"]);
});
