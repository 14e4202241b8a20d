// A project as one zip: the photo, the work, the settings, and tables and results for other programs.

import { strFromU8, strToU8, unzipSync, zipSync } from "./vendor/fflate.js";
import { writeAnchorTable } from "./table.js";
import { newId } from "./state.js";

/** @typedef {import("./state.js").Project} Project */
/** @typedef {{name: string, bytes: Uint8Array}} NamedBytes */

const FORMAT = "scalefield project";
const VERSION = 1;
export const MOST_UNPACKED = 512 * 2 ** 20;

/** @param {Project} project
 *  @param {{photo: NamedBytes, depth: NamedBytes | null, results: NamedBytes[]}} files
 *  @returns {Uint8Array} */
export function packProject(project, { photo, depth, results }) {
  const { id, thumbnail, updated, photo: _, depth: depthFile, ...kept } = project;
  const photoPath = `photo${suffix(photo.name)}`;
  /** @type {Record<string, [Uint8Array, {level: 0 | 6}]>} */
  const entries = {
    "project.json": [strToU8(JSON.stringify({ format: FORMAT, version: VERSION, ...kept, photo: photoPath, depth: depth && depthFile ? { ...depthFile, key: "", path: `relative_depth${suffix(depth.name)}` } : null }, null, 1)), { level: 6 }],
    [photoPath]: [photo.bytes, { level: 0 }],
    "anchors.csv": [strToU8(writeAnchorTable(project.work.anchors)), { level: 6 }],
  };
  if (depth) entries[`relative_depth${suffix(depth.name)}`] = [depth.bytes, { level: 0 }];
  for (const { name, bytes } of results) entries[`results/${name}`] = [bytes, { level: 0 }];
  return zipSync(entries);
}

/** The project in a zip, with a new id; throws an Error with a sentence.
 *  @param {Uint8Array} bytes
 *  @returns {{project: Project, photo: NamedBytes, depth: NamedBytes | null}} */
export function unpackProject(bytes) {
  /** @type {Record<string, Uint8Array>} */
  let entries;
  let size = 0;
  try {
    entries = unzipSync(bytes, {
      filter: ({ name, originalSize }) => {
        size += originalSize;
        if (size > MOST_UNPACKED) throw new Error("too large");
        return !name.startsWith("results/");
      },
    });
  } catch {
    throw new Error("This is not a zip file that can be read, or it is too large.");
  }
  if (!entries["project.json"]) throw new Error("This zip is not a project: it has no project.json.");
  /** @type {any} */
  let saved;
  try {
    saved = JSON.parse(strFromU8(entries["project.json"]));
  } catch {
    throw new Error("The project.json of this zip cannot be read.");
  }
  if (saved.format !== FORMAT) throw new Error("This zip is not a scalefield project.");
  if (saved.version > VERSION) throw new Error("This project was saved by a newer scalefield; update this one.");
  const photo = entries[saved.photo];
  if (!photo) throw new Error(`This project lacks its photo, ${String(saved.photo)}.`);
  const depth = saved.depth ? entries[saved.depth.path] : null;
  if (saved.depth && !depth) throw new Error("This project lacks its relative depth.");
  const { format, version, ...rest } = saved;
  const project = checked({ ...rest, id: newId(), photo: "", thumbnail: null, updated: Date.now() });
  if (project.depth && depth) {
    const { path, ...depthFile } = /** @type {any} */ (project.depth);
    project.depth = depthFile;
    return { project, photo: { name: project.name, bytes: photo }, depth: { name: depthFile.name, bytes: depth } };
  }
  return { project, photo: { name: project.name, bytes: photo }, depth: null };
}

/** Refuse values that are not numbers: the file may have been edited by hand. @param {any} project @returns {Project} */
function checked(project) {
  const { work, settings } = project;
  const number = (/** @type {unknown} */ x) => typeof x === "number" && Number.isFinite(x);
  const pixel = (/** @type {any} */ p) => p && number(p.u) && number(p.v);
  const good =
    typeof project.name === "string" && settings && typeof settings.method === "string" &&
    Array.isArray(work?.anchors) && Array.isArray(work?.measurements) &&
    work.anchors.every((/** @type {any} */ a) => pixel(a) && Number.isInteger(a.id) && number(a.depth_m) && a.depth_m > 0 && (a.sigma_m === null || (number(a.sigma_m) && a.sigma_m > 0))) &&
    work.measurements.every((/** @type {any} */ m) => ["distance", "path", "area", "height"].includes(m.kind) && Number.isInteger(m.id) && Array.isArray(m.points) && m.points.every(pixel)) &&
    (settings.fov === null || (number(settings.fov?.deg) && settings.fov.deg >= 1 && settings.fov.deg <= 170));
  if (!good) throw new Error("The project.json of this zip has values that cannot be used.");
  return project;
}

/** @param {string} name */
const suffix = (name) => /\.[a-z0-9]{1,5}$/i.exec(name)?.[0].toLowerCase() ?? "";
