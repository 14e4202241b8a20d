import assert from "node:assert/strict";
import test from "node:test";

import { packProject, unpackProject } from "../../../src/scalefield/web/static/project_file.js";
import { Server, ServerError, unpack } from "../../../src/scalefield/web/static/server.js";
import { Sessions } from "../../../src/scalefield/web/static/sessions.js";
import { LatestRequest } from "../../../src/scalefield/web/static/solver.js";
import { addAnchor, emptyWork } from "../../../src/scalefield/web/static/state.js";
import { Store } from "../../../src/scalefield/web/static/store.js";
import { strToU8, zipSync } from "../../../src/scalefield/web/static/vendor/fflate.js";

const later = () => new Promise((go) => setTimeout(go));

test("of quick requests for one method the first ends and the newest follows", async () => {
  const done = [], gates = [];
  const last = new LatestRequest(async (request) => {
    await new Promise((go) => gates.push(go));
    done.push(request.n);
  });
  for (let n = 0; n < 5; n++) last.request({ method: "field", quick: true, n });
  gates.shift()();
  await later();
  gates.shift()();
  await later();
  assert.deepEqual(done, [0, 4]);
  assert.equal(last.running, null);
});

test("another method aborts what is under way at once, and a slow one too", async () => {
  const aborted = [], busy = [];
  const last = new LatestRequest((request, signal) => new Promise((go) => signal.addEventListener("abort", () => go(aborted.push(request.n)))), (request) => busy.push(request?.n ?? null));
  last.request({ method: "knn", quick: false, n: 0 });
  last.request({ method: "knn", quick: false, n: 1 });
  last.request({ method: "field", quick: true, n: 2 });
  last.request({ method: "basis", quick: true, n: 3 });
  await later();
  assert.deepEqual(aborted, [0, 1, 2]);
  assert.equal(busy.at(-1), 3);
  last.cancel();
  await later();
  assert.equal(busy.at(-1), null);
});

test("a failing request leaves the next one free", async () => {
  const last = new LatestRequest(async () => {
    throw new Error("no");
  });
  await assert.rejects(last.start({ method: "a", quick: true }));
  assert.equal(last.running, null);
});

const project = () => ({
  id: "x", name: "Küche.jpg", photo: "k", sample: "", width: 640, height: 480, depth: null, thumbnail: null, updated: 0,
  settings: { method: "field", compare: "", view: "depth", blend: 0.5, fov: { deg: 62, source: "EXIF" } },
  work: addAnchor({ ...emptyWork(), measurements: [{ id: 1, kind: "area", points: [{ u: 1, v: 2 }] }] }, { u: 1.5, v: 2, depth_m: 0.1 + 0.2 }),
});

test("a project file is read back with every digit, under a new id", () => {
  const photo = { name: "Küche.jpg", bytes: Uint8Array.from([1, 2, 3]) };
  const depthFile = { key: "d", name: "d.npy", kind: "depth", resize: false, array: "" };
  const zip = packProject({ ...project(), depth: depthFile }, { photo, depth: { name: "d.npy", bytes: Uint8Array.from([4]) }, results: [{ name: "depth.png", bytes: Uint8Array.from([9]) }] });
  const back = unpackProject(zip);
  assert.deepEqual(back.photo.bytes, photo.bytes);
  assert.deepEqual([...back.depth.bytes], [4]);
  assert.deepEqual(back.project.work, project().work);
  assert.deepEqual(back.project.settings, project().settings);
  assert.deepEqual(back.project.depth, { ...depthFile, key: "" });
  assert.notEqual(back.project.id, "x");
});

test("what is no project is refused in a sentence", () => {
  const zipped = (saved, more = {}) => zipSync({ "project.json": [strToU8(typeof saved === "string" ? saved : JSON.stringify(saved)), { level: 6 }], ...more });
  const good = { format: "scalefield project", version: 1, name: "a", photo: "photo.jpg", depth: null, settings: { method: "field", fov: null }, work: emptyWork() };
  const photo = { "photo.jpg": [Uint8Array.from([1]), { level: 0 }] };
  assert.equal(unpackProject(zipped(good, photo)).project.name, "a");
  for (const [bytes, words] of [
    [Uint8Array.from([1, 2]), /not a zip/],
    [zipSync({ "a.txt": [strToU8("a"), { level: 0 }] }), /no project.json/],
    [zipped("{"), /cannot be read/],
    [zipped({ ...good, format: "other" }), /not a scalefield project/],
    [zipped({ ...good, version: 2 }, photo), /newer/],
    [zipped(good), /lacks its photo/],
    [zipped({ ...good, work: { anchors: [{ id: 1, u: 1, v: 2, depth_m: -1, sigma_m: null }], measurements: [] } }, photo), /cannot be used/],
    [zipped({ ...good, settings: { method: "field", fov: { deg: 900 } } }, photo), /cannot be used/],
  ]) assert.throws(() => unpackProject(bytes), words);
});

/** A server of which every answer is a function of the request. */
function fakeFetch(answer) {
  const asked = [];
  globalThis.fetch = async (path, options = {}) => {
    asked.push(`${options.method ?? "GET"} ${path}`);
    const { status = 200, body = {} } = answer(path, options, asked);
    if (status === 0) throw new TypeError("refused");
    return new Response(JSON.stringify(body), { status });
  };
  return asked;
}

const ready = { id: "new", state: "ready", width: 4, height: 3 };

test("a session that the server lost is made again from the kept photo", async () => {
  const sessions = new Sessions(new Server("tab"), async () => new Blob(["photo"]), () => {});
  sessions.remember("p", "old");
  const asked = fakeFetch((path, { method }) => (path.startsWith("/api/sessions/old") ? { status: 404, body: { error: "gone", code: "session_gone" } } : method === "POST" && path.startsWith("/api/sessions?") ? { body: ready } : { body: { ok: path } }));
  const found = await sessions.use({ id: "p", name: "a.jpg", photo: "k", sample: "", depth: null }, async (id) => (await sessions.server.ask(`/api/sessions/${id}/x`)).json());
  assert.deepEqual(found, { ok: "/api/sessions/new/x" });
  assert.deepEqual(asked, ["GET /api/sessions/old/x", "POST /api/sessions?name=a.jpg", "GET /api/sessions/new/x"]);
});

test("withRetries asks a server that does not answer again, and reports it", async () => {
  const told = [];
  let silent = 2;
  const sessions = new Sessions(new Server("tab"), async () => new Blob([]), (offline) => told.push(offline));
  fakeFetch(() => (silent-- > 0 ? { status: 0 } : { body: { ok: 1 } }));
  globalThis.setTimeout = ((original) => (go) => original(go, 0))(globalThis.setTimeout);
  assert.deepEqual(await sessions.withRetries(async () => (await sessions.server.ask("/api")).json()), { ok: 1 });
  assert.deepEqual(told, [true, true, false]);
});

test("a refusal has the server's code and choices", async () => {
  fakeFetch(() => ({ status: 400, body: { error: "two arrays", code: "choose_array", choices: ["a", "b"] } }));
  await assert.rejects(new Server("tab").ask("/x"), (e) => e instanceof ServerError && e.code === "choose_array" && e.choices.length === 2);
});

test("packed maps are read back, with holes", () => {
  const header = new TextEncoder().encode(JSON.stringify({ a: 1, maps: [{ name: "m", shape: [1, 3], low: 1, high: 3 }] }));
  const padded = header.length + ((4 - (header.length % 4)) % 4), buffer = new ArrayBuffer(4 + padded + 6);
  new DataView(buffer).setUint32(0, padded, true);
  new Uint8Array(buffer, 4).fill(32, 0, padded);
  new Uint8Array(buffer, 4).set(header);
  new Uint16Array(buffer, 4 + padded).set([0, 65534, 65535]);
  const { maps } = unpack(buffer);
  assert.deepEqual([...maps.m.values], [1, 3, NaN]);
});

test("without a database work is kept in memory, and old projects are tidied away", async () => {
  const store = await Store.open(); // node has no indexedDB
  assert.equal(store.lasting, false);
  for (let i = 0; i < 5; i++) {
    await store.put("projects", `p${i}`, { id: `p${i}`, photo: `k${i}`, depth: null, updated: i });
    await store.put("photos", `k${i}`, i);
  }
  await store.put("tabs", "t", { id: "t", projects: ["p0"] });
  await store.put("tabs", "old", { id: "old", projects: ["p1"] });
  await store.deleteUnneeded(2, new Set(["p0"]));
  assert.deepEqual((await store.all("projects")).map((p) => p.id).sort(), ["p0", "p3", "p4"]);
  assert.deepEqual((await store.all("tabs")).map((t) => t.id), ["t"]);
  assert.equal(await store.get("photos", "k1"), undefined);
  assert.equal(await store.get("photos", "k0"), 0);
});
