// Files made in the browser: the annotated picture and the project.

import { fitView } from "./geometry.js";
import { packProject } from "./project_file.js";
import { drawColours, write } from "./marks.js";
import { hasScale } from "./state.js";
import { barTicks } from "./views.js";

const WIDEST = 2400;

/** The present view with its marks and its colour bar, as a PNG. @param {import("./page.js").Page} page
 *  @returns {Promise<Blob>} */
export async function annotatedImage(page) {
  const { session, view, views, stage, unit } = page, { barScale: scale, cloud } = views;
  if (view === "cloud" && cloud) return cloudImage(cloud);
  const width = Math.min(WIDEST, Math.max(1200, session.width));
  // Marks are drawn at the size they have on a screen of 1200 pixels.
  const ratio = width / 1200, size = { width: 1200, height: Math.round((1200 * session.height) / session.width) };
  const bar = scale ? 54 : 0;
  const { canvas, context } = paper(width, Math.round((size.height + bar) * ratio));
  context.scale(ratio, ratio);
  stage.drawBase(context, fitView(session, size));
  stage.drawOverlay(context, fitView(session, size), size, true);
  if (scale) {
    const left = 60, wide = size.width - 120, top = size.height + 10;
    drawColours(context, scale.table, left, top, wide, 14);
    for (const { share, text } of barTicks(view, scale, unit, 8))
      write(context, text, left + wide * share, top + 28, "#333", 13);
  }
  return canvas.convertToBlob({ type: "image/png" });
}

/** The point cloud as it is turned, with its marks. @param {import("./cloud.js").Cloud} cloud */
function cloudImage({ canvas: points, layer }) {
  const { canvas, context } = paper(points.width, points.height);
  for (const each of [points, layer]) context.drawImage(each, 0, 0);
  return canvas.convertToBlob({ type: "image/png" });
}

/** A white canvas. @param {number} width @param {number} height */
function paper(width, height) {
  const canvas = new OffscreenCanvas(width, height);
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  return { canvas, context };
}

/** The whole project as a zip. @param {any} page @returns {Promise<Blob>} */
export async function projectZip(page) {
  const { project, loaded, work } = page;
  const bytes = async (/** @type {Blob} */ blob) => new Uint8Array(await blob.arrayBuffer());
  const photo = await page.store.get("photos", project.photo);
  if (!photo) throw new Error("The photo of this project is no longer in this browser.");
  const depth = project.depth ? await page.store.get("photos", project.depth.key) : null;
  const results = [];
  if (hasScale(work, project.settings.method)) {
    const { edit } = page.solving.requestFor(project.settings.method);
    const file = await page.sessions.use(project, (/** @type {string} */ id) =>
      page.server.file(id, "depth.png", edit),
    );
    results.push({ name: "depth.png", bytes: await bytes(file) });
    if (loaded.result) {
      const { maps, ...report } = loaded.result.header;
      results.push({ name: "report.json", bytes: new TextEncoder().encode(JSON.stringify(report, null, 1)) });
    }
  }
  if (work.measurements.length)
    results.push({ name: "measurements.csv", bytes: new TextEncoder().encode(await page.measurementTable()) });
  return packProject(project, {
    photo: { name: project.name, bytes: await bytes(photo) },
    depth: depth && project.depth ? { name: project.depth.name, bytes: await bytes(depth) } : null, results,
  });
}
