// A project as one zip: the photo, the work, the settings, and tables and results for other programs.

import { depthAnchors } from "./geometry.js";
import { writeAnchorTable } from "./readings.js";
import { newId } from "./state.js";
import { readZip, writeZip } from "./zip.js";

/** @typedef {import("./state.js").Project} Project */
/** @typedef {{name: string, bytes: Uint8Array}} NamedBytes */

const FORMAT = "scalefield project";
const VERSION = 1;
const MOST_UNPACKED = 512 * 2 ** 20;

/** @param {Project} project
 *  @param {{photo: NamedBytes, depth: NamedBytes | null, results: NamedBytes[]}} files
 *  @returns {Blob} */
export function packProject(project, { photo, depth, results }) {
  const { id, thumbnail, updated, photo: _, depth: depthFile, ...kept } = project;
  const photoPath = `photo${suffix(photo.name)}`, depthPath = depth && `relative_depth${suffix(depth.name)}`;
  const savedDepth = depthPath && { ...depthFile, key: "", path: depthPath };
  const saved = { format: FORMAT, version: VERSION, ...kept, photo: photoPath, depth: savedDepth };
  const text = (/** @type {string} */ words) => new TextEncoder().encode(words);
  const entries = [
    { name: "project.json", bytes: text(JSON.stringify(saved, null, 1)) }, { name: photoPath, bytes: photo.bytes },
    { name: "anchors.csv", bytes: text(writeAnchorTable(depthAnchors(project))) },
  ];
  if (depth && depthPath) entries.push({ name: depthPath, bytes: depth.bytes });
  return writeZip([...entries, ...results.map(({ name, bytes }) => ({ name: `results/${name}`, bytes }))]);
}

/** The project in a zip, with a new id; throws an Error with a sentence.
 *  @param {Uint8Array} bytes
 *  @returns {Promise<{project: Project, photo: Uint8Array, depth: Uint8Array | null}>} */
export async function unpackProject(bytes) {
  /** @type {Map<string, Uint8Array>} */
  let entries;
  try {
    entries = await readZip(bytes, (name) => !name.startsWith("results/"), MOST_UNPACKED);
  } catch {
    throw new Error("This is not a zip file that can be read, or it is too large.");
  }
  const json = entries.get("project.json");
  if (!json) throw new Error("This zip is not a project: it has no project.json.");
  /** @type {any} */
  let saved;
  try {
    saved = JSON.parse(new TextDecoder().decode(json));
  } catch {
    throw new Error("The project.json of this zip cannot be read.");
  }
  if (saved?.format !== FORMAT) throw new Error("This zip is not a scalefield project.");
  if (saved.version > VERSION) throw new Error("This project was saved by a newer scalefield; update this one.");
  const photo = entries.get(saved.photo);
  if (!photo) throw new Error(`This project lacks its photo, ${String(saved.photo)}.`);
  const depth = saved.depth ? entries.get(saved.depth.path) : null;
  if (depth === undefined) throw new Error("This project lacks its relative depth.");
  const { format, version, ...kept } = saved;
  const { path, ...depthFile } = saved.depth ?? {};
  const project = checked({
    ...kept, depth: depth && depthFile, id: newId(), photo: "", thumbnail: null, updated: Date.now(),
  });
  return { project, photo, depth };
}

/** Refuse values that cannot be used: the file may have been edited by hand. @param {any} project @returns {Project} */
function checked(project) {
  const { work, settings } = project;
  const optional = (/** @type {unknown} */ x) => x === undefined || (typeof x === "string" && x.length <= 100);
  const known = (/** @type {any} */ k) =>
    k === undefined ||
    (number(k?.value_m) && k.value_m > 0 && typeof k.text === "string" && optional(k.text) && optional(k.object));
  const different = (/** @type {{id: number}[]} */ items) => new Set(items.map(({ id }) => id)).size === items.length;
  const number = (/** @type {unknown} */ x) => typeof x === "number" && Number.isFinite(x);
  const pixel = (/** @type {any} */ p) => p && number(p.u) && number(p.v);
  const good =
    typeof project.name === "string" &&
    settings &&
    typeof settings.method === "string" &&
    Array.isArray(work?.anchors) &&
    Array.isArray(work?.measurements) &&
    work.anchors.every(
      (/** @type {any} */ a) =>
        pixel(a) &&
        Number.isInteger(a.id) &&
        number(a.depth_m) &&
        a.depth_m > 0 &&
        (a.sigma_m === null || (number(a.sigma_m) && a.sigma_m > 0)) &&
        optional(a.text) && [true, false, undefined].includes(a.slant),
    ) &&
    work.measurements.every(
      (/** @type {any} */ m) =>
        ["distance", "path", "area", "height", "level", "upright"].includes(m.kind) &&
        Number.isInteger(m.id) &&
        Array.isArray(m.points) &&
        m.points.every(pixel) &&
        optional(m.name) && known(m.known),
    ) &&
    different(work.anchors) &&
    different(work.measurements) &&
    (settings.fov === null || (number(settings.fov?.deg) && settings.fov.deg >= 1 && settings.fov.deg <= 170));
  if (!good) throw new Error("The project.json of this zip has values that cannot be used.");
  return project;
}

/** @param {string} name */
const suffix = (name) => /\.[a-z0-9]{1,5}$/i.exec(name)?.[0].toLowerCase() ?? "";
