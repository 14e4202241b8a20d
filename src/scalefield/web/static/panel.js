// The panel beside the picture: the method, its result and the exports.

import { $, element, setText } from "./dom.js";
import { countedFromOne, doubledAnchors } from "./state.js";
import { measured } from "./readings.js";

/** @param {any} page */
export function showPanel(page) {
  const { project, loaded, work } = page;
  if (!project || !loaded) return;
  const n = work.anchors.length;
  setText($("anchor-count"), String(n));
  $("anchors-empty").hidden = n > 0;
  $("clear").disabled = !n;
  $("undo").disabled = !page.workspace.history.past.length;
  $("redo").disabled = !page.workspace.history.future.length;
  const given = loaded.sampleAnchors;
  $("sample-anchors").hidden = !given || (n === given.length && given.every((/** @type {any} */ a, /** @type {number} */ i) => ["u", "v", "depth_m"].every((key) => a[key] === /** @type {any} */ (work.anchors[i])[key])));
  page.rows.draw(work.anchors, page.unit, (/** @type {number} */ i) => page.aboutAnchor(i));
  showAnchorNotes(page);
  showMethod(page);
  showMeasurements(page);
  showNext(page);
  for (const button of $("downloads").children) {
    const { file } = button.dataset;
    button.disabled = file === "annotated.png" ? false : file === "measurements.csv" ? !work.measurements.length : !n;
  }
  setText($("saved-hint"), page.store.lasting ? "Everything is also kept in this browser, and survives closing it." : "This browser keeps nothing after the page is closed: save the project.");
}

/** @param {any} page */
function showAnchorNotes({ work }) {
  const doubled = doubledAnchors(work.anchors), notes = [];
  if (doubled.size) {
    const numbers = work.anchors.flatMap((/** @type {any} */ a, /** @type {number} */ i) => (doubled.has(a.id) ? [`#${i + 1}`] : []));
    notes.push(`${numbers.slice(0, 6).join(", ")} lie on the same pixel.`);
  }
  $("anchor-notes").hidden = !notes.length;
  setText($("anchor-notes"), notes.join(" "));
}

/** The method and the notes on its result. @param {any} page */
export function showMethod(page) {
  const { method, compare } = page.project.settings, { result } = page.loaded;
  if ($("method").value !== method) $("method").value = method;
  if ($("compare").value !== compare) $("compare").value = compare;
  setText($("method-about"), page.methods[method]?.about ?? "");
  const notes = [];
  if (result) {
    const { header } = result, bad = result.suspects.size;
    const warnings = header.warnings
      .filter((/** @type {{code: string}} */ warning) => warning.code !== "outliers_downweighted")
      .map((/** @type {{text: string}} */ warning) => countedFromOne(warning.text));
    if (bad) notes.push(`${bad === 1 ? "One anchor contradicts" : `${bad} anchors contradict`} the others: ${numbered(result)}. Measure again, or delete.`);
    notes.push(...warnings.map((/** @type {string} */ w) => `Careful: ${w}.`), ...header.fallbacks.map(countedFromOne));
    const title = page.methods[result.method].title;
    if (result.method !== method) notes.push(`Shown: ${title}, until ${page.methods[method].title} is solved.`);
    else notes.push(`Shown: ${title}${result.preview && !page.methods[method].quick ? ", at display size; the full size follows" : ""}.`);
  }
  const list = $("notes");
  if (notes.join("\n") !== [...list.children].map((c) => c.textContent).join("\n")) list.replaceChildren(...notes.map((words) => element("li", "", words)));
}

/** Contradicted anchors by the numbers that the photo and the list show. @param {any} result */
const numbered = (result) => [...result.suspects].slice(0, 5).map((i) => `#${i + 1}`).join(", ") + (result.suspects.size > 5 ? ` and ${result.suspects.size - 5} more` : "");

/** @param {any} page */
function showMeasurements(page) {
  const { work, loaded, unit } = page, { measurements } = work, fov = page.fov;
  setText($("measure-count"), String(measurements.length));
  $("measurements-empty").hidden = measurements.length > 0;
  const list = $("measure-list"), known = new Map([...list.children].map((c) => [Number(c.dataset.id), c]));
  const rows = measurements.map((/** @type {any} */ m, /** @type {number} */ i) => {
    const row = known.get(m.id) ?? makeRow(page, m.id);
    const found = measured(m, loaded.session, loaded.result, fov?.deg ?? null, unit);
    row.classList.toggle("unsure", found.unsure);
    setText(row.querySelector(".kind"), m.kind[0].toUpperCase() + m.kind.slice(1));
    setText(row.querySelector(".value"), found.unsure && found.range ? found.range : found.value);
    setText(row.querySelector(".range"), found.unsure && found.range ? `perhaps ${found.value}` : found.range);
    row.querySelector("button").setAttribute("aria-label", `Delete measurement ${i + 1}`);
    return row;
  });
  if (rows.length !== list.children.length || rows.some((/** @type {any} */ r, /** @type {number} */ i) => list.children[i] !== r)) list.replaceChildren(...rows);
  const notes = [];
  if (measurements.length) notes.push("Ranges are 90 % intervals, whatever the correlation between the errors of the points.");
  if (measurements.some((/** @type {any} */ m) => m.kind === "height")) notes.push("Heights assume a level camera.");
  if (measurements.length && fov?.source === "assumed") notes.push(`The field of view is assumed (${fov.deg}°): lengths across the photo may be off.`);
  $("measure-note").hidden = !notes.length;
  setText($("measure-note"), notes.join(" "));
}

/** @param {any} page @param {number} id */
function makeRow(page, id) {
  const row = element("li"), remove = element("button", "quiet icon", "✕");
  row.dataset.id = id;
  remove.addEventListener("click", () => page.removeMeasurement(id));
  row.append(element("span", "kind"), element("span", "value"), element("span", "range"), remove);
  return row;
}

/** @param {any} page */
export function showNext(page) {
  const shares = page.solving.suggestions.map((/** @type {any} */ { removes }, /** @type {number} */ i) => `${i + 1} removes ${Math.round(100 * removes)} %`);
  $("next-hint").hidden = !$("next").checked;
  setText($("next-hint"), shares.length ? `Rings mark the points whose measurement would help most. Of the uncertainty that is left: ${shares.join(", ")}.` : "Looking for the points that would help most …");
}

/** @param {any} page */
export function showCamera(page) {
  const { loaded, fov } = page, { session } = loaded;
  $("fov").value = fov ? String(Number(fov.deg.toFixed(2))) : "";
  $("fov-badge").hidden = fov?.source !== "assumed";
  $("fov").classList.toggle("assumed", fov?.source === "assumed");
  const sources = { EXIF: "Read from the photo's EXIF.", sample: "Known for this sample.", given: "Given by you.", assumed: "Assumed, not measured: lengths across the photo may be off." };
  setText($("fov-hint"), fov ? sources[/** @type {keyof typeof sources} */ (fov.source)] : "Not known. 3D assumes 60° until you give it.");
  setText($("depth-source"), session.relative_depth + (session.kind === "disparity" ? " (disparity)" : ""));
  $("licence").hidden = session.relative_depth !== page.info.estimator;
  setText($("licence"), `Weights of ${page.info.estimator}: ${page.info.estimator_licence}.`);
}

/** Thumbnails of the photos in this tab. @param {any} page */
export function showGallery(page) {
  const gallery = $("gallery"), projects = page.workspace.tabProjects();
  gallery.hidden = projects.length < 2;
  gallery.replaceChildren(
    ...projects.map((/** @type {any} */ project) => {
      const button = element("button", "thumb");
      button.setAttribute("aria-label", `${project.name}, ${project.work.anchors.length} anchors`);
      button.setAttribute("aria-current", String(project.id === page.project?.id));
      button.title = project.name;
      button.append(thumbnail(project));
      button.addEventListener("click", () => page.workspace.switchTo(project.id));
      return button;
    }),
  );
}

/** @param {any} project */
function thumbnail(project) {
  if (!project.thumbnail) return element("span", "blank", project.name.slice(0, 2));
  const image = element("img");
  image.alt = "";
  image.src = URL.createObjectURL(project.thumbnail);
  image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
  return image;
}

/** Projects kept in this browser, on the start screen. @param {any} page @param {any[]} projects */
export function showRecent(page, projects) {
  $("recent").hidden = !projects.length;
  $("recent-list").replaceChildren(
    ...projects.map((project) => {
      const item = element("li"), open = element("button", "recent"), remove = element("button", "quiet icon", "✕");
      const words = element("span");
      words.append(element("b", "", project.name), element("small", "", `${project.work.anchors.length} anchors · ${when(project.updated)}`));
      open.append(thumbnail(project), words);
      open.addEventListener("click", () => page.workspace.openKept(project.id));
      remove.setAttribute("aria-label", `Delete ${project.name} from this browser`);
      remove.addEventListener("click", () => page.workspace.deleteKept(project.id));
      item.append(open, remove);
      return item;
    }),
  );
}

/** @param {number} time */
function when(time) {
  const minutes = Math.round((Date.now() - time) / 60000);
  if (minutes < 2) return "just now";
  if (minutes < 60) return `${minutes} minutes ago`;
  if (minutes < 60 * 24) return `${Math.round(minutes / 60)} hours ago`;
  return new Date(time).toLocaleDateString();
}
