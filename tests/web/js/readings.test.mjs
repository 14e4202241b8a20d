import assert from "node:assert/strict";
import test from "node:test";

import { gridStep } from "../../../src/scalefield/web/static/cloud.js";
import { sentence, stem } from "../../../src/scalefield/web/static/dom.js";
import { depthAnchors, holdView, nearestInside, pointOf } from "../../../src/scalefield/web/static/geometry.js";
import { Scale, paint } from "../../../src/scalefield/web/static/maps.js";
import { Measuring } from "../../../src/scalefield/web/static/measuring.js";
import { aboutAnchors, measured, metresAt, shownAt, writeAnchorTable, writeMeasurements } from "../../../src/scalefield/web/static/readings.js";
import { Solving } from "../../../src/scalefield/web/static/solving.js";
import { givenOf, hasScale, removeMeasurement } from "../../../src/scalefield/web/static/state.js";
import { VIEWS, barTicks } from "../../../src/scalefield/web/static/views.js";

const session = { width: 4, height: 2, display_width: 2, display_height: 1 };
const result = {
  method: "field", preview: false, index: new Map([[7, 0], [8, 1], [9, 2]]), suspects: new Set([1]), corroborated: new Set(),
  logDepth: Float32Array.from([Math.log(2), NaN]), logScale: new Float32Array(2), stdLog: Float32Array.from([0.1, 0.2]),
  header: {
    anchors: [{ residual_log: 0.01 }, { residual_log: 0.5 }, { reason: "same as #0" }],
    others: [{ depth_m: 2, sigmas: 0.1 }, { depth_m: 3, sigmas: 5 }, null],
  },
};
const TABLE = Array.from({ length: 256 }, (_, i) => [i, 0, 255 - i]);
const anchors = [7, 8, 9, 10].map((id) => ({ id, u: id, v: 0, depth_m: 2, sigma_m: null }));

test("aboutAnchors: residual, contradiction, unused, and nothing yet for an anchor that is not solved", () => {
  const [first, second, third, fourth] = aboutAnchors(anchors, result, "m", () => "rgb(0 0 0)");
  assert.match(first.words, /^map \+1/);
  assert.equal(first.suspect, false);
  assert.equal(second.suspect, true);
  assert.match(second.words, /the others give 3\.00 m \(\+50/);
  assert.match(second.plate, /2.* · others 3\.00/);
  assert.equal(third.unused, true);
  assert.equal(third.words, "not used: same as #1"); // the page counts from one
  assert.equal(fourth.words, "");
  assert.equal(aboutAnchors([{ ...anchors[0] }], { ...result, header: { anchors: [{ residual_log: 1e-4 }], others: [null] } }, "m", () => "")[0].words, "fits");
  assert.deepEqual(aboutAnchors(anchors, null, "m", () => "rgb(0 0 0)").map((a) => a.words), ["", "", "", ""]);
});

test("aboutAnchors shows what the others predict from two standard deviations", () => {
  const told = (sigmas) => aboutAnchors([anchors[0]], { ...result, header: { anchors: [{ residual_log: 0 }], others: [{ depth_m: 3, sigmas }] } }, "m", () => "")[0].words;
  assert.match(told(-2.1), /the others alone would give 3\.00 m/);
  assert.doesNotMatch(told(1.9), /others/);
});

test("aboutAnchors offers another unit where it would agree with the others, or with what is expected of a first anchor", () => {
  const told = (anchor, header) => aboutAnchors([{ ...anchors[0], ...anchor }], { ...result, header: { anchors: [{ residual_log: 0 }], ...header } }, "m", () => "")[0].slip;
  const others = [{ depth_m: 2.2, sigmas: 6 }];
  assert.deepEqual(told({ depth_m: 237, text: "237 m" }, { others }), { text: "237 cm", metres: 2.37 });
  assert.equal(told({ depth_m: 237, text: "237 m" }, { others: [{ depth_m: 2.2, sigmas: 1 }] }), null);
  assert.equal(told({ depth_m: 237, text: "237 m" }, { others: [null], expected_m: [2.9] }).text, "237 cm");
  assert.equal(told({ depth_m: 2.37, text: "2.37 m" }, { others: [null], expected_m: [1.2] }), null);
});

test("metresAt and shownAt: the displayed pixel, null at a hole and outside of any map", () => {
  assert.ok(Math.abs(metresAt(session, result.logDepth, { u: 1, v: 1 }) - 2) < 1e-6);
  assert.equal(metresAt(session, result.logDepth, { u: 3, v: 0 }), null);
  assert.equal(metresAt(session, null, { u: 0, v: 0 }), null);
  assert.equal(shownAt(session, result, { u: 3, v: 0 }).value, null);
  const { low, high } = shownAt(session, result, { u: 0, v: 0 });
  assert.ok(Math.abs(Math.log(high / low) - 2 * 1.645 * 0.1) < 1e-6);
  assert.equal(shownAt(session, { ...result, stdLog: null }, { u: 0, v: 0 }).low, null);
});

test("writeMeasurements: a line each, in metres, empty cells where there is no value", () => {
  const measurements = [
    { id: 1, kind: "distance", points: [{ u: 0, v: 0 }, { u: 3, v: 0 }], name: 'the "long" wall' },
    { id: 2, kind: "area", points: [{ u: 0, v: 0 }, { u: 3, v: 0 }] },
  ];
  const estimates = [{ value: 3, low: 2.5, high: 3.51234567 }, null];
  const table = writeMeasurements(measurements, (m) => estimates[m.id - 1], result, { deg: 90, source: "given" });
  const [title, first, second, end] = table.split("\n");
  assert.equal(title.split(",").length, first.split(",").length);
  assert.equal(first, '1,distance,3,m,2.5,3.51235,field,90,given,"the ""long"" wall",0 0 / 3 0');
  assert.deepEqual(second.split(",").slice(0, 6), ["2", "area", "", "m2", "", ""]);
  assert.equal(end, "");
});

/** A page with a result, whose server answers each question after a while. */
function measuringPage() {
  const asked = [];
  const page = {
    loaded: { project: { id: "p" }, session: { revision: 1 }, result: { method: "field", anchors: [1], sent: { anchors: [{ u: 1 }], known: [] } } },
    get shown() {
      return this.loaded;
    },
    fov: { deg: 60 }, work: { measurements: [] }, card: { pin: null }, stage: { cursor: null }, tools: { pending: null, profilePixels: () => [] },
    sessions: { use: (_, work) => work("id") }, estimated: () => {}, showError: (words) => assert.fail(words),
    server: {
      measure: async (_, body) => {
        asked.push(body);
        await new Promise((go) => setTimeout(go));
        const n = asked.length, some = body.points.map(() => n);
        return { depth_m: some, low_m: some, high_m: some, measurements: body.measurements.map(() => ({ value: n, low: n, high: n })) };
      },
    },
  };
  return { page, asked, measuring: new Measuring(page) };
}

test("Measuring asks once for what is shown, and again after another result", async () => {
  const { page, asked, measuring } = measuringPage(), line = { kind: "distance", points: [{ u: 1, v: 2 }, { u: 3, v: 4 }] };
  page.work.measurements = [line];
  page.card.pin = { u: 9, v: 9, id: 3 };
  await measuring.update();
  await measuring.update();
  assert.equal(asked.length, 1);
  assert.deepEqual(asked[0].points, [{ u: 9, v: 9 }]);
  assert.equal(asked[0].fov_deg, 60);
  assert.equal(measuring.estimate(line).value, 1);
  assert.equal(measuring.depthAt({ u: 9, v: 9 }).value, 1);
  page.loaded.result = { ...page.loaded.result, anchors: [2] };
  assert.equal(measuring.depthAt({ u: 9, v: 9 }), null); // a depth is shown from the map meanwhile
  assert.equal(measuring.estimate(line).value, 1); // and a length as it was
  await measuring.update();
  assert.equal(measuring.estimate(line).value, 2);
});

test("Measuring asks for what has come up while it waited, and then resolves", async () => {
  const { page, asked, measuring } = measuringPage(), line = { kind: "path", points: [{ u: 1, v: 2 }, { u: 3, v: 4 }] };
  page.tools.pending = { kind: "path", points: [{ u: 1, v: 2 }] };
  page.stage.cursor = { u: 5, v: 5 };
  const first = measuring.update();
  page.tools.pending = null;
  page.work.measurements = [line];
  await Promise.all([first, measuring.update()]);
  assert.deepEqual(asked.map((body) => body.measurements.length), [1, 1]);
  assert.equal(measuring.estimate(line).value, 2);
});

test("pointOf: the middle of the photo is straight ahead, its edge at half the field of view", () => {
  const photo = { width: 101, height: 51 };
  const middle = pointOf(photo, 90, { u: 50, v: 25 }, 2), edge = pointOf(photo, 90, { u: 100.5, v: 25 }, 2);
  assert.deepEqual(Object.values(middle).map((x) => Math.abs(Number(x.toFixed(9)))), [0, 0, 2]);
  assert.ok(Math.abs(Object.values(edge)[0] - 2) < 0.05);
});

test("depthAnchors: distances along the slant become depths, and others stay", () => {
  const project = { width: 101, height: 101, settings: { fov: { deg: 90 } }, work: { anchors: [
    { id: 1, u: 50, v: 50, depth_m: 2, slant: true }, { id: 2, u: 100, v: 50, depth_m: 2, slant: true }, { id: 3, u: 100, v: 50, depth_m: 2 },
  ] } };
  const [middle, edge, straight] = depthAnchors(project).map((a) => a.depth_m);
  assert.equal(middle, 2);
  assert.ok(Math.abs(edge - 2 / Math.hypot(1, 50 / 50.5)) < 1e-9);
  assert.equal(straight, 2);
  assert.equal(project.work.anchors[1].depth_m, 2);
});

test("a known length is shown as it was typed, and it and planes are what the server is given besides anchors", () => {
  const points = [{ u: 1, v: 2, more: 1 }, { u: 3, v: 4 }];
  const work = { anchors: [], measurements: [
    { id: 1, kind: "distance", points, name: "Shelf", known: { value_m: 2.3, text: "2.3 m" } },
    { id: 2, kind: "height", points, known: { value_m: 2, text: "door", object: "door" } },
    { id: 3, kind: "level", points }, { id: 4, kind: "path", points },
  ] };
  const plain = [{ u: 1, v: 2 }, { u: 3, v: 4 }];
  assert.deepEqual(givenOf(work), [
    { kind: "distance", points: plain, value_m: 2.3 }, { kind: "door", points: plain }, { kind: "level", points: plain },
  ]);
  assert.equal(measured(work.measurements[0], null, "m").label, "Shelf: 2.3 m");
  assert.ok(hasScale(work, "field"));
  assert.ok(!hasScale(work, "median"));
  assert.ok(!hasScale({ anchors: [], measurements: work.measurements.slice(2) }, "field"));
});

test("nearestInside rounds, and keeps within the photo", () => {
  const photo = { width: 100, height: 50 };
  assert.deepEqual(nearestInside({ u: 3.6, v: 7 }, photo), { u: 4, v: 7 });
  assert.deepEqual(nearestInside({ u: -5, v: 60 }, photo), { u: 0, v: 49 });
});

test("holdView: a small photo stays within the stage, a large one covers it", () => {
  const stage = { width: 100, height: 100 };
  assert.deepEqual(holdView({ scale: 1, x: -30, y: 200 }, { width: 50, height: 50 }, stage), { scale: 1, x: 0, y: 50 });
  const { x, y } = holdView({ scale: 1, x: 500, y: -900 }, { width: 400, height: 400 }, stage);
  assert.ok(x >= 0 && x <= 100 && y >= -400 && y <= -200);
});

test("writeAnchorTable has every digit, and sigma_m if an anchor has one", () => {
  const given = [{ u: 1.5, v: 2, depth_m: 0.1 + 0.2, sigma_m: null }, { u: 3, v: 4, depth_m: 1e-7, sigma_m: 0.01 }];
  assert.equal(writeAnchorTable(given), "u,v,depth_m,sigma_m\n1.5,2,0.30000000000000004,\n3,4,1e-7,0.01\n");
  assert.equal(writeAnchorTable(given.slice(0, 1)), "u,v,depth_m\n1.5,2,0.30000000000000004\n");
});

test("sentence begins with a capital and ends with one full stop", () => {
  assert.deepEqual(["line 2: no.", "“far” is no length"].map(sentence), ["Line 2: no.", "“far” is no length."]);
});

test("gridStep is round in the unit that is shown", () => {
  for (const unit_m of [1, 0.01, 0.3048]) {
    for (const metres of [0.4, 3, 12, 90]) {
      const steps = gridStep(metres, unit_m) / unit_m, mantissa = steps / 10 ** Math.floor(Math.log10(steps) + 1e-9);
      assert.ok([1, 2, 5].some((m) => Math.abs(m - mantissa) < 1e-9), `${metres} ${unit_m} ${steps}`);
    }
  }
});

test("stem is the name without its last ending, and removeMeasurement changes nothing in place", () => {
  assert.deepEqual(["a.b.jpg", "a", ".x"].map(stem), ["a.b", "a", ""]);
  const work = { anchors: [], measurements: [{ id: 1, kind: "area", points: [] }, { id: 2, kind: "path", points: [] }] };
  assert.deepEqual(removeMeasurement(work, 1).measurements.map((m) => m.id), [2]);
  assert.equal(work.measurements.length, 2);
});

test("paint: the ends of the table beyond the scale, grey at holes", () => {
  const scale = new Scale(TABLE, 0, 1, false);
  let drawn = null;
  const context = { createImageData: (w, h) => ({ data: new Uint8ClampedArray(4 * w * h) }), putImageData: (image) => (drawn = image.data) };
  paint({ width: 0, height: 0, getContext: () => context }, Float32Array.from([-1, 0.5, 2, NaN]), scale, 4, 1);
  assert.deepEqual([...drawn], [0, 0, 255, 255, 128, 0, 127, 255, 255, 0, 0, 255, 138, 138, 138, 255]);
  assert.equal(scale.colour(2), "rgb(255 0 0)");
});

test("barTicks lie where their values do, in the quantity of the view", () => {
  const even = new Scale(TABLE, Math.log(1), Math.log(3), true), around = new Scale(TABLE, Math.log(4), Math.log(9), false, Math.log(6));
  const shown = barTicks("depth", even, "m", 3).map(({ share, text }) => `${text} at ${share.toFixed(6)}`);
  assert.deepEqual(shown, ["1 m at 0.000000", "2 m at 0.500000", "3 m at 1.000000"]);
  assert.equal(barTicks("photo", even, "cm", 3)[1].text, "200 cm");
  assert.equal(barTicks("uncertainty", even, "m", 3)[1].text, "200 %");
  assert.equal(barTicks("mde", even, "m", 3)[1].text, "2");
  const middle = barTicks("field", around, "m", 8).find(({ text }) => text === "1×"); // 6 is the median
  assert.ok(Math.abs(middle.share - Math.log(6 / 4) / Math.log(9 / 4)) < 1e-9);
});

test("VIEWS: those that compare two methods need a result, and lie on the stage", () => {
  const compared = Object.entries(VIEWS).filter(([, view]) => view.compared);
  assert.deepEqual(compared.map(([name]) => name), ["depth", "field"]);
  assert.ok(compared.every(([, { flat, solved }]) => flat && solved));
});

/** A page whose server answers `sizes` one after the other; records what is asked and shown. */
function fakePage(sizes) {
  const asked = [], shown = [];
  globalThis.document = { body: { dataset: {} } };
  const work = { measurements: [], anchors: [{ id: 1, u: 0, v: 0, depth_m: 1, sigma_m: null }] };
  const loaded = { project: { work, settings: { fov: null } }, session: { width: 2, height: 1, display_width: 2, display_height: 1 }, logMde: new Float32Array(2) };
  const page = {
    loaded, shown: loaded, fov: null, work, methods: { field: { quick: true } },
    askUnit() {}, views: { showBusy() {}, showAll: () => shown.push(loaded.result.preview ? "preview" : "full") },
    sessions: { use: (_, work) => work("id") },
    server: {
      recover: async (_, { size }) => {
        asked.push(size);
        return { header: { size: sizes.shift(), suspects: [], limits_m: [0.1, 10] }, maps: { log_scale: { shape: [1, 2], values: new Float32Array(2) } } };
      },
    },
  };
  const solving = new Solving(page);
  page.solving = solving;
  return { solving, asked, shown, request: solving.requestFor("field") };
}

test("Solving shows a preview, and then the full result", async () => {
  const { solving, asked, shown, request } = fakePage(["preview", "full"]);
  await solving.solver.start(request);
  assert.deepEqual(asked, ["preview", "full"]);
  assert.deepEqual(shown, ["preview", "full"]);
  assert.equal(document.body.dataset.solved, "field 1 full");
});

test("Solving asks once where the server answers with the full result", async () => {
  const { solving, asked, request } = fakePage(["full"]);
  await solving.solver.start(request);
  assert.deepEqual(asked, ["preview"]);
});

test("Solving leaves out the full result of an edit that is followed by another", async () => {
  const { solving, asked, request } = fakePage(["preview", "preview", "full"]);
  const running = solving.solver.start(request);
  solving.solver.request(request);
  await running;
  while (solving.solver.running) await new Promise((go) => setTimeout(go));
  assert.deepEqual(asked, ["preview", "preview", "full"]);
});
