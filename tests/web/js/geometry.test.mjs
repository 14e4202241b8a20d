import assert from "node:assert/strict";
import test from "node:test";

import { withoutEdges, rotation, scaleBarLength } from "../../../src/scalefield/web/static/cloud.js";
import { NINETY, estimate, extent, fitView, focalPixels, nearestPixel, panView, thinned, toPixel, toStage, zoomView } from "../../../src/scalefield/web/static/geometry.js";
import { colourTable, composeLogDepth, depthScale, factorScale, percentiles, ticks, upsample } from "../../../src/scalefield/web/static/maps.js";
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
  const kept = thinned(view, many, 20, stage);
  assert.ok(kept.length < (800 / 20 + 1) * (600 / 20 + 1) && kept.length > 300);
});

test("lengths, areas and heights in space", () => {
  const square = [[0, 0, 2], [1, 0, 2], [1, 1, 2], [0, 1, 2]];
  near(extent("area", square), 1);
  near(extent("path", square), 3);
  near(extent("distance", square.slice(0, 2)), 1);
  near(extent("height", [[0, 3, 1], [5, 1, 9]]), 2);
  near(extent("area", square.map(([x, y, z]) => [x, z, y])), 1);
});

test("a common relative error makes the same relative error of a length", () => {
  const samples = [{ u: 100, v: 240, depth: 2, std: 0.1 }, { u: 500, v: 240, depth: 2, std: 0.1 }];
  const found = estimate("distance", samples, photo, 60);
  near(found.value, (400 / focalPixels(photo, 60)) * 2, 1e-9);
  near(found.relativeStd, 0.1, 1e-6);
  near(found.high / found.value, Math.exp(NINETY * 0.1), 1e-5);
  const area = estimate("area", [...samples, { u: 300, v: 400, depth: 2, std: 0.1 }], photo, 60);
  near(area.relativeStd, 0.2, 1e-6);
});

test("a short length between two depths is less sure than the depths", () => {
  const samples = [{ u: 320, v: 240, depth: 2, std: 0.1 }, { u: 321, v: 240, depth: 2.1, std: 0.1 }];
  assert.ok(estimate("distance", samples, photo, 60).relativeStd > 1);
  const unknown = estimate("distance", samples.map((s) => ({ ...s, std: null })), photo, 60);
  assert.deepEqual([unknown.low, unknown.high], [null, null]);
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
  assert.equal(measured(m, session, result(0.01), 60, "m").unsure, false);
  const unsure = measured(m, session, result(0.6), 60, "m");
  assert.equal(unsure.label, unsure.range);
  assert.equal(measured(m, session, result(0.1), null, "m").value, "–");
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
