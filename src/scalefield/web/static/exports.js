// Files made in the browser: the annotated picture and the project.

import { fitView } from "./geometry.js";
import { packProject } from "./project_file.js";
import { writeMeasurements } from "./readings.js";
import { write } from "./stage.js";
import { barTicks } from "./views.js";

const WIDEST = 2400;

/** The present view with its marks and its colour bar, as a PNG. @param {any} page @returns {Promise<Blob>} */
export async function annotatedImage(page) {
  const { session } = page, width = Math.min(WIDEST, Math.max(1200, session.width));
  // Marks are drawn at the size they have on a screen of 1200 pixels.
  const ratio = width / 1200, size = { width: 1200, height: Math.round((1200 * session.height) / session.width) };
  const bar = page.views.barScale ? 54 : 0;
  const canvas = new OffscreenCanvas(width, Math.round((size.height + bar) * ratio));
  const context = /** @type {any} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, size.width, size.height + bar);
  // The stage at another size; the one on the screen stays as it is.
  const changed = { size, view: fitView(session, size), cursor: null, context: () => context };
  const stage = Object.assign(Object.create(page.stage), changed);
  stage.drawBase();
  stage.drawOverlay();
  if (bar) drawBar(context, page, size);
  return canvas.convertToBlob({ type: "image/png" });
}

/** @param {any} context @param {any} page @param {{width: number, height: number}} size */
function drawBar(context, page, size) {
  const { barScale: scale } = page.views, left = 60, wide = size.width - 120, top = size.height + 10;
  scale.table.forEach((/** @type {number[]} */ [r, g, b], /** @type {number} */ i) => {
    context.fillStyle = `rgb(${r} ${g} ${b})`;
    context.fillRect(left + (wide * i) / 256, top, wide / 256 + 1, 14);
  });
  for (const { share, text } of barTicks(page.view, scale, page.unit, 8)) {
    write(context, text, left + wide * share, top + 28, "#333", 13);
  }
}

/** The whole project as a zip. @param {any} page @returns {Promise<Blob>} */
export async function projectZip(page) {
  const { project, loaded, work } = page;
  const bytes = async (/** @type {Blob} */ blob) => new Uint8Array(await blob.arrayBuffer());
  const photo = await page.store.get("photos", project.photo);
  if (!photo) throw new Error("The photo of this project is no longer in this browser.");
  const depth = project.depth ? await page.store.get("photos", project.depth.key) : null;
  const results = [];
  if (work.anchors.length) {
    const { anchors, method } = page.solving.requestFor(project.settings.method);
    const file = await page.sessions.use(project, (/** @type {string} */ id) => page.server.file(id, "depth.png", { anchors, method }));
    results.push({ name: "depth.png", bytes: await bytes(file) });
    if (loaded.result) {
      const { maps, ...report } = loaded.result.header;
      results.push({ name: "report.json", bytes: new TextEncoder().encode(JSON.stringify(report, null, 1)) });
    }
  }
  if (work.measurements.length) results.push({ name: "measurements.csv", bytes: new TextEncoder().encode(writeMeasurements(work.measurements, loaded.session, loaded.result, page.fov)) });
  return packProject(project, { photo: { name: project.name, bytes: await bytes(photo) }, depth: depth && project.depth ? { name: project.depth.name, bytes: await bytes(depth) } : null, results });
}
