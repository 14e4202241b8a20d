import assert from "node:assert/strict";
import test from "node:test";

import { withoutEdges, rotation, scaleBarLength } from "../../../src/scalefield/web/static/cloud.js";
import { fitView, nearestPixel, panView, toPixel, toStage, zoomView } from "../../../src/scalefield/web/static/geometry.js";
import { colourTable, composeLogDepth, depthScale, factorScale, percentiles, ticks, upsample } from "../../../src/scalefield/web/static/maps.js";
import { thinned } from "../../../src/scalefield/web/static/marks.js";
import { displayIndex, inkOn, measured, readingAt } from "../../../src/scalefield/web/static/readings.js";

const photo = { width: 640, height: 480 }, stage = { width: 1000, height: 600 };
const near = (a, b, tolerance = 1e-9) => assert.ok(Math.abs(a - b) <= tolerance, `${a} ${b}`);

test("the whole photo fits and is centred", () => {
  const view = fitView(photo, stage);
  assert.deepEqual(view, { scale: 1.25, x: 100, y: 0 });
  for (const pixel of [{ u: 0, v: 0 }, { u: 639, v: 479 }, { u: 17, v: 300 }]) assert.deepEqual(toPixel(view, toStage(view, pixel), photo), pixel);
  assert.equal(toPixel(view, { x: 99, y: 10 }, photo), null);
});

test("zoom keeps what is under the pointer and the photo on the stage", () => {
  let view = fitView(photo, stage);
  const at = { x: 701, y: 101 }, pixel = toPixel(view, at, photo);
  for (let i = 0; i < 5; i++) view = zoomView(view, 1.3, at, photo, stage);
  assert.deepEqual(toPixel(view, at, photo), pixel);
  const moved = panView(view, 1e5, -1e5, photo, stage);
  near(moved.x, fitView(photo, stage).x);
  near(moved.y, stage.height - photo.height * moved.scale);
  assert.deepEqual(zoomView(moved, 1e-9, at, photo, stage), fitView(photo, stage));
});

test("the nearest anchor within reach is found, and many are thinned", () => {
  const view = fitView(photo, stage), pixels = [{ u: 10, v: 10 }, { u: 14, v: 10 }, { u: 300, v: 200 }];
  assert.equal(nearestPixel(view, pixels, toStage(view, { u: 13, v: 10 }), 10), 1);
  assert.equal(nearestPixel(view, pixels, toStage(view, { u: 100, v: 100 }), 10), -1);
  const many = Array.from({ length: 5000 }, (_, i) => ({ u: (i * 37) % 640, v: (i * 91) % 480 }));
  const kept = thinned(many.map((pixel) => toStage(view, pixel)), 20);
  assert.ok(kept.length < (800 / 20 + 1) * (600 / 20 + 1) && kept.length > 300);
});

const session = { width: 4, height: 2, display_width: 4, display_height: 2 };
const result = (std) => ({ header: {}, method: "field", logDepth: new Float32Array(8).fill(Math.log(2)), stdLog: std === null ? null : new Float32Array(8).fill(std), logScale: new Float32Array(8) });
const names = { titles: { field: "Gaussian process" }, view: "depth" };

test("a reading without support is marked as unsure", () => {
  const known = { session, other: null, logTruth: null };
  assert.equal(readingAt({ ...known, result: null }, { u: 0, v: 0 }, "m", names), null);
  assert.deepEqual(readingAt({ ...known, result: result(0.1) }, { u: 0, v: 0 }, "m", names), { value: "2.00 m", range: "1.70 … 2.36 m", unsure: false, notes: [] });
  assert.equal(readingAt({ ...known, result: result(0.5) }, { u: 0, v: 0 }, "m", names).unsure, true);
  assert.equal(readingAt({ ...known, result: result(null) }, { u: 0, v: 0 }, "m", names).range, "");
});

test("a measurement's label is its range where it is unsure", () => {
  const m = { kind: "distance", points: [{ u: 0, v: 0 }, { u: 3, v: 0 }] };
  assert.equal(measured(m, { value: 2, low: 1.9, high: 2.1 }, "m").unsure, false);
  const unsure = measured(m, { value: 2, low: 0.5, high: 8 }, "m");
  assert.equal(unsure.label, "0.500 … 8.00 m");
  assert.equal(measured(m, null, "m").value, "–"); // not read yet
  assert.equal(measured(m, { value: null, low: null, high: null }, "m").value, "no depth at a point");
  assert.match(measured(m, { value: 2, low: null, high: null }, "m").range, /not known/);
  assert.equal(measured({ ...m, kind: "area" }, { value: 2, low: 1.9, high: 2.1 }, "m").value, "–"); // two corners
});

test("the depth of the photo's own pixel takes the place of the displayed one's", () => {
  const known = { session, other: null, logTruth: null, result: result(0.5) };
  const exact = { value: 2.02, low: 2, high: 2.04 };
  assert.deepEqual(readingAt(known, { u: 0, v: 0 }, "m", names, exact), { value: "2.02 m", range: "2.00 … 2.04 m", unsure: false, notes: [] });
});

test("displayed pixels are those that hold the photo's", () => {
  const large = { width: 4000, height: 3000, display_width: 800, display_height: 600 };
  assert.equal(displayIndex(large, { u: 0, v: 0 }), 0);
  assert.equal(displayIndex(large, { u: 3999, v: 2999 }), 800 * 600 - 1);
  assert.equal(displayIndex(large, { u: 2002, v: 7 }), 800 + 400);
});

test("text on a colour can be read", () => {
  assert.equal(inkOn("rgb(255 240 200)"), "#15161a");
  assert.equal(inkOn("rgb(30 10 80)"), "#fff");
});

test("pixels at edges are not drawn", () => {
  const row = Float32Array.from([0, 0.001, 0.002, 0.7, 0.701, NaN]);
  assert.deepEqual([...withoutEdges(row, 6, 0.002)].map((v) => v > 1e8), [false, false, true, true, false, true]);
});

test("rotation is one, and the scale bar is round", () => {
  const r = rotation(0.4, -0.3), columns = [0, 3, 6].map((i) => r.slice(i, i + 3));
  columns.forEach((a, i) => columns.forEach((b, j) => near(a.reduce((s, x, k) => s + x * b[k], 0), i === j ? 1 : 0, 1e-12)));
  for (const scale of [0.3, 7, 160, 9000]) {
    const length = scaleBarLength(scale, 800);
    assert.ok(length * scale <= 0.28 * 800 && length * scale > 0.05 * 800);
    assert.match(length.toExponential(), /^[125]e/);
  }
});

test("maps: bilinear between cell centres, limits, percentiles, ticks", () => {
  const shown = { width: 8, height: 4, display_width: 8, display_height: 4 };
  const up = upsample({ shape: [2, 4], values: Float32Array.from([0, 1, 2, 3, 0, 1, 2, 3]) }, shown);
  near(up[2], 0.75, 1e-6);
  const log = composeLogDepth(Float32Array.from([0, 1, NaN]), Float32Array.from([0, 5, 0]), [1, 10]);
  near(log[1], Math.log(10), 1e-6);
  assert.ok(Number.isNaN(log[2]));
  assert.deepEqual(percentiles(Float32Array.from([3, 1, 2, NaN]), [0, 0.5, 1]), [1, 2, 3]);
  assert.deepEqual(ticks(0, 10, 6, false), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(1, 100, 5, true), [1, 3, 10, 30, 100]);
  const table = colourTable(["#000000", "#ffffff"]);
  assert.deepEqual([table.length, table[0], table[255]], [256, [0, 0, 0], [255, 255, 255]]);
  assert.ok(depthScale(table, [Float32Array.from([0, 1, 2])]).position(1) > 0);
  near(factorScale(table, Float32Array.from([1, 2, 3])).middle, 2);
});
