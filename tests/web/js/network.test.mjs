import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { packProject, unpackProject } from "../../../src/scalefield/web/static/project_file.js";
import { Server, ServerError, unpack } from "../../../src/scalefield/web/static/server.js";
import { Sessions } from "../../../src/scalefield/web/static/sessions.js";
import { LatestRequest } from "../../../src/scalefield/web/static/solver.js";
import { addAnchor, emptyWork } from "../../../src/scalefield/web/static/state.js";
import { Store, Texts } from "../../../src/scalefield/web/static/store.js";
import { crc32, readZip, writeZip } from "../../../src/scalefield/web/static/zip.js";

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

const bytesOf = async (blob) => new Uint8Array(await blob.arrayBuffer());
const text = (words) => new TextEncoder().encode(words);
const zipped = async (files) => bytesOf(writeZip(Object.entries(files).map(([name, bytes]) => ({ name, bytes }))));
const depthFile = { key: "d", name: "d.npy", kind: "depth", resize: false, array: "" };

function assertProjectIsBack({ project: back, photo, depth }) {
  assert.deepEqual([...photo], [1, 2, 3]);
  assert.deepEqual([...depth], [4]);
  assert.deepEqual(back.work, project().work);
  assert.deepEqual(back.settings, project().settings);
  assert.deepEqual(back.depth, { ...depthFile, key: "" });
  assert.notEqual(back.id, "x");
}

test("a project file is read back with every digit, under a new id", async () => {
  const photo = { name: "Küche.jpg", bytes: Uint8Array.from([1, 2, 3]) };
  const zip = packProject({ ...project(), depth: depthFile }, { photo, depth: { name: "d.npy", bytes: Uint8Array.from([4]) }, results: [{ name: "depth.png", bytes: Uint8Array.from([9]) }] });
  assertProjectIsBack(await unpackProject(await bytesOf(zip)));
});

test("a project file with deflated entries, as earlier versions wrote them, is read", async () => {
  const file = new URL("project_with_deflated_entries.zip", import.meta.url);
  assertProjectIsBack(await unpackProject(new Uint8Array(readFileSync(file))));
});

test("what is no project is refused in a sentence", async () => {
  const good = { format: "scalefield project", version: 1, name: "a", photo: "photo.jpg", depth: null, settings: { method: "field", fov: null }, work: emptyWork() };
  const photo = { "photo.jpg": Uint8Array.from([1]) };
  const saved = (values, more = {}) => zipped({ "project.json": text(JSON.stringify(values)), ...more });
  assert.equal((await unpackProject(await saved(good, photo))).project.name, "a");
  for (const [bytes, words] of [
    [Uint8Array.from([1, 2]), /not a zip/],
    [await zipped({ "a.txt": text("a") }), /no project.json/],
    [await zipped({ "project.json": text("{") }), /cannot be read/],
    [await saved(null), /not a scalefield project/],
    [await saved({ ...good, format: "other" }), /not a scalefield project/],
    [await saved({ ...good, version: 2 }, photo), /newer/],
    [await saved(good), /lacks its photo/],
    [await saved({ ...good, depth: { path: "d.npy" } }, photo), /lacks its relative depth/],
    [await saved({ ...good, work: { anchors: [{ id: 1, u: 1, v: 2, depth_m: -1, sigma_m: null }], measurements: [] } }, photo), /cannot be used/],
    [await saved({ ...good, settings: { method: "field", fov: { deg: 900 } } }, photo), /cannot be used/],
  ]) await assert.rejects(unpackProject(bytes), words);
});

test("crc32 of the check value of the standard", () => assert.equal(crc32(text("123456789")), 0xcbf43926));

test("readZip refuses damaged entries and those that unpack to more than they state or than the limit", async () => {
  const all = () => true, deflated = new Uint8Array(readFileSync(new URL("project_with_deflated_entries.zip", import.meta.url)));
  const stored = await zipped({ a: text("abc"), b: text("de") });
  assert.deepEqual([...(await readZip(stored, all, 5)).keys()], ["a", "b"]);
  assert.deepEqual([...(await readZip(stored, (name) => name === "b", 2)).keys()], ["b"]);
  await assert.rejects(readZip(stored, all, 4), /too large/);
  const changed = (bytes, at, value) => Object.assign(bytes.slice(), { [at]: value });
  await assert.rejects(readZip(changed(stored, stored.indexOf(97, 31), 98), all, 5), /damaged/); // a letter of the content
  const directory = new DataView(deflated.buffer).getUint32(deflated.length - 6, true);
  assert.ok((await readZip(deflated, all, 2 ** 20)).get("project.json").length > 256);
  await assert.rejects(readZip(changed(deflated, directory + 25, 0), all, 2 ** 20), RangeError); // the high byte of its size
  await assert.rejects(readZip(changed(deflated, directory + 24, 255), all, 2 ** 20), /damaged/);
  await assert.rejects(readZip(deflated.subarray(0, deflated.length - 1), all, 2 ** 20), /no directory/);
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

test("readLength and readTable send the text and answer with what it means", async () => {
  const asked = fakeFetch((path) => ({ body: path === "/api/length" ? { length_m: 2.5146 } : { anchors: [{ u: 1, v: 2, depth_m: 3 }] } }));
  assert.equal(await new Server("tab").readLength("8 ft 3", "m"), 2.5146);
  assert.deepEqual(await new Server("tab").readTable("id", "1,2,3"), [{ u: 1, v: 2, depth_m: 3 }]);
  assert.deepEqual(asked, ["POST /api/length", "POST /api/sessions/id/table"]);
  fakeFetch(() => ({ status: 400, body: { error: "two readings", code: "ambiguous", readings: { "2400 mm": 2.4 } } }));
  await assert.rejects(new Server("tab").readLength("2,400 mm", "m"), (e) => e.readings["2400 mm"] === 2.4);
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

test("Texts are kept by the storage, and in memory where it refuses them", () => {
  const items = new Map(), storage = { getItem: (key) => items.get(key) ?? null, setItem: (key, value) => items.set(key, value), removeItem: (key) => items.delete(key) };
  const kept = new Texts(() => storage), refused = new Texts(() => {
    throw new Error("refused");
  });
  for (const texts of [kept, refused]) {
    assert.equal(texts.get("unit"), null);
    texts.set("unit", "ft");
    assert.equal(texts.get("unit"), "ft");
  }
  assert.equal(new Texts(() => storage).get("unit"), "ft"); // after a reload
  for (const texts of [kept, refused]) {
    texts.delete("unit");
    assert.equal(texts.get("unit"), null);
  }
  assert.equal(items.size, 0);
});

const DAY = 24 * 3600e3, NOW = 100 * DAY;

async function filled(projects) {
  const store = await Store.open(); // node has no indexedDB
  assert.equal(store.lasting, false);
  for (const { id, anchors = 0, ...more } of projects) {
    const work = { anchors: Array(anchors).fill({}), measurements: [] };
    await store.write(
      ["projects", id, { id, photo: `photo of ${id}`, depth: null, updated: NOW - 5 * DAY, work, ...more }],
      ["photos", `photo of ${id}`, new Blob([new Uint8Array(100)])],
    );
  }
  return store;
}

const left = async (store) => (await store.all("projects")).map((p) => p.id).sort();

test("tidying never deletes a project with work, however many there are and however full the disk is", async () => {
  const many = Array.from({ length: 60 }, (_, i) => ({ id: `p${i}`, anchors: 1 }));
  const store = await filled([...many, { id: "empty" }, { id: "open" }, { id: "fresh", updated: NOW - 60e3 }]);
  await store.tidy(async () => false, 0, NOW);
  assert.equal((await left(store)).length, 63);
  await store.tidy(async ({ id }) => id === "open", 1e9, NOW);
  assert.equal((await left(store)).length, 62);
  assert.ok(!(await left(store)).includes("empty"));
  assert.equal(await store.get("photos", "photo of empty"), undefined);
});

test("tidying frees no more than is needed, the oldest first", async () => {
  const store = await filled([1, 2, 3].map((age) => ({ id: `p${age}`, updated: NOW - (age + 1) * DAY })));
  await store.tidy(async () => false, 150, NOW);
  assert.deepEqual(await left(store), ["p1"]);
});

test("deleted projects stay for a day, photos without a project do not", async () => {
  const store = await filled([
    { id: "just", anchors: 2, deleted: NOW - 60e3 },
    { id: "long", anchors: 2, deleted: NOW - 2 * DAY },
    { id: "elsewhere", anchors: 2, deleted: NOW - 2 * DAY },
  ]);
  await store.write(["photos", "orphan", new Blob([])]);
  await store.write(["tabs", "old", { id: "old", updated: NOW - 40 * DAY }], ["tabs", "new", { id: "new", updated: NOW }]);
  await store.tidy(async ({ id }) => id === "elsewhere", 0, NOW);
  assert.deepEqual(await left(store), ["elsewhere", "just"]);
  assert.deepEqual([...(await store.photos()).keys()], ["photo of just", "photo of elsewhere"]);
  assert.deepEqual((await store.all("tabs")).map((t) => t.id), ["new"]);
});
