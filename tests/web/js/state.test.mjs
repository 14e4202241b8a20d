import assert from "node:assert/strict";
import test from "node:test";

import { History, MOST_STEPS, addAnchor, addMeasurement, changeAnchor, countedFromOne, doubledAnchors, emptyWork, removeAnchor, replaceAnchors } from "../../../src/scalefield/web/static/state.js";

const anchor = (depth_m, u = 1) => ({ u, v: 2, depth_m });

test("work is never changed in place", () => {
  const first = Object.freeze({ ...emptyWork(), anchors: Object.freeze([]) });
  const second = addAnchor(first, anchor(1));
  const third = changeAnchor(second, 1, { depth_m: 2 });
  assert.deepEqual([first.anchors.length, second.anchors[0].depth_m, third.anchors[0].depth_m], [0, 1, 2]);
  assert.deepEqual(removeAnchor(third, 1).anchors, []);
  assert.equal(addMeasurement(third, "area", [{ u: 1, v: 2 }]).measurements[0].id, 1);
});

test("replaced anchors have new ids, so that no row is taken for another anchor's", () => {
  const work = addAnchor(emptyWork(), anchor(1));
  assert.deepEqual(replaceAnchors(work, [anchor(5), anchor(6)]).anchors.map((a) => a.id), [2, 3]);
});

test("history goes back over a change of the project", () => {
  const history = new History(), one = addAnchor(emptyWork(), anchor(1)), two = addAnchor(one, anchor(2));
  history.commit("a", one);
  history.commit("a", two);
  history.commit("b", emptyWork());
  assert.deepEqual(history.undo(), { project: "a", work: two });
  assert.deepEqual(history.undo(), { project: "a", work: one });
  assert.equal(history.undo(), null);
  assert.deepEqual(history.redo(), { project: "a", work: two });
  assert.deepEqual(history.redo(), { project: "b", work: emptyWork() });
  assert.equal(history.redo(), null);
  history.undo();
  history.commit("a", one);
  assert.equal(history.redo(), null);
  assert.deepEqual(new Set(["a"]), history.projects());
});

test("history is bounded, copied under other names, and forgets a deleted project", () => {
  const history = new History();
  for (let i = 0; i < 3 * MOST_STEPS; i++) history.commit(i % 2 ? "a" : "b", emptyWork());
  assert.ok(history.past.length <= MOST_STEPS);
  const copy = history.renamed(new Map([["a", "c"]]));
  assert.deepEqual(copy.projects(), new Set(["c", "b"]));
  copy.forget("c");
  assert.deepEqual(copy.projects(), new Set(["b"]));
  assert.deepEqual(history.projects(), new Set(["a", "b"]));
});

test("a history is shortened to so many anchors", () => {
  const history = new History(), work = replaceAnchors(emptyWork(), [anchor(1), anchor(2), anchor(3)]);
  for (let i = 0; i < 6; i++) history.commit("a", i < 4 ? work : emptyWork());
  assert.equal(history.shortened(7).past.length, 3);
  assert.equal(history.shortened(100).past.length, 5);
  assert.equal(history.shortened(0).past.length, 1);
  assert.equal(history.past.length, 5);
});

test("numbers of the server's sentences count from one", () => {
  assert.equal(countedFromOne("contradicted by the others: #1 (9 m), #10 (3 m)"), "contradicted by the others: #2 (9 m), #11 (3 m)");
});

test("anchors on one pixel are found", () => {
  const { anchors } = replaceAnchors(emptyWork(), [anchor(1), anchor(2), anchor(3, 7), { u: 1.2, v: 1.9, depth_m: 4 }]);
  assert.deepEqual(doubledAnchors(anchors), [[0, 1, 3]]);
});
