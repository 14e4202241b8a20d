// The panel beside the picture: the method, its result and the exports.

import { $, element, setText } from "./dom.js";
import { PLANES, countedFromOne, doubledAnchors, hasScale } from "./state.js";
import { formatLength, unitSlip } from "./units.js";
import { measured } from "./readings.js";

/** @typedef {import("./page.js").Page} Page */
/** @typedef {import("./state.js").Project} Project */

const PANORAMA = 2.4; // longer over shorter side from which a photo is probably no single view of a camera

/** @param {Page} page */
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
  $("sample-anchors").hidden =
    !given ||
    (n === given.length &&
      given.every((/** @type {any} */ a, /** @type {number} */ i) =>
        ["u", "v", "depth_m"].every((key) => a[key] === /** @type {any} */ (work.anchors[i])[key]),
      ));
  page.rows.draw(work.anchors, page.unit, (/** @type {number} */ i) => page.aboutAnchor(i));
  showAnchorNotes(page);
  showMethod(page);
  showMeasurements(page);
  showNext(page);
  for (const button of $("downloads").children) {
    const { file } = button.dataset;
    const usable = {
      "annotated.png": page.view !== "basis", "measurements.csv": work.measurements.length, "anchors.csv": n,
    };
    button.disabled = !(usable[/** @type {keyof typeof usable} */ (file)] ?? hasScale(work, project.settings.method));
  }
  setText(
    $("saved-hint"),
    page.store.lasting
      ? "Everything is also kept in this browser, and survives closing it."
      : "This browser keeps nothing after the page is closed: save the project.",
  );
}

/** @param {Page} page */
function showAnchorNotes({ work }) {
  const doubled = doubledAnchors(work.anchors),
    shown = doubled.slice(0, 3).map((all) => all.map((i) => `#${i + 1}`).join(" and "));
  const more = doubled.length > 3 ? ` So do ${doubled.length - 3} more groups.` : "";
  $("anchor-notes").hidden = !doubled.length;
  setText($("anchor-notes"), doubled.length ? `On the same pixel lie ${shown.join("; ")}.${more}` : "");
}

/** The method and the notes on its result. @param {Page} page */
export function showMethod(page) {
  const { project, result } = page.shown, { method, compare } = project.settings;
  if ($("method").value !== method) $("method").value = method;
  if ($("compare").value !== compare) $("compare").value = compare;
  setText($("method-about"), page.methods[method]?.about ?? "");
  /** @type {string[]} */
  const notes = [];
  if (result) {
    const { header } = result, bad = result.suspects.size;
    const warnings = header.warnings.filter((/** @type {{code: string}} */ { code }) => !code.startsWith("outliers_"));
    if (bad)
      notes.push(
        `${bad === 1 ? "One anchor contradicts" : `${bad} anchors contradict`} the others: ${numbered(result)}. ` +
          "Measure again, or delete.",
      );
    notes.push(...warnings.map((/** @type {{text: string}} */ { text }) => `${capital(countedFromOne(text))}.`));
    if (header.fallbacks.length)
      notes.push("There are too few anchors for all of this method; a simpler fit was used in places.");
    if (result.method !== method)
      notes.push(`Shown: ${page.titles[result.method]}, until ${page.titles[method]} is computed.`);
    else if (result.preview && !page.methods[method].quick && page.solving.solver.running)
      notes.push("Shown at display size; the full size follows.");
    else if (result.preview && !page.methods[method].quick)
      notes.push("Shown at display size; exports have the full size.");
  }
  const list = $("notes");
  if (notes.join("\n") !== [...list.children].map((c) => c.textContent).join("\n"))
    list.replaceChildren(...notes.map((words) => element("li", "", words)));
}

/** @param {string} words */
const capital = (words) => words[0].toUpperCase() + words.slice(1);

/** Contradicted anchors by the numbers that the photo and the list show. @param {any} result */
const numbered = (result) =>
  [...result.suspects]
    .slice(0, 5)
    .map((i) => `#${i + 1}`)
    .join(", ") + (result.suspects.size > 5 ? ` and ${result.suspects.size - 5} more` : "");

const KIND_TITLES = {
  distance: "Distance", path: "Path", area: "Area", height: "Height", level: "Floor or table", upright: "Wall",
};

/** @param {Page} page */
export function showMeasurements(page) {
  const { measurements } = page.work, { fov } = page, list = $("measure-list");
  setText($("measure-count"), String(measurements.length));
  $("measurements-empty").hidden = measurements.length > 0;
  const known = new Map([...list.children].map((c) => [Number(c.dataset.id), c]));
  const rows = measurements.map((m, i) => {
    const row = known.get(m.id) ?? makeRow(page, m.id);
    fillRow(page, row, m, i);
    return row;
  });
  if (rows.length !== list.children.length || rows.some((r, i) => list.children[i] !== r))
    list.replaceChildren(...rows);
  const notes = [];
  if (measurements.some((m) => !m.known && !PLANES.has(m.kind))) notes.push("Ranges hold the truth nine times in ten.");
  if (measurements.some((m) => m.kind === "height" || PLANES.has(m.kind))) {
    notes.push("The camera is taken to be level, more or less.");
  }
  if (measurements.length && fov?.source === "assumed")
    notes.push(`The field of view is assumed (${fov.deg}°): lengths across the photo may be off.`);
  $("measure-note").hidden = !notes.length;
  setText($("measure-note"), notes.join(" "));
}

/** @param {Page} page @param {HTMLElement} row @param {import("./state.js").Measurement} m @param {number} i */
function fillRow(page, row, m, i) {
  const part = (/** @type {string} */ name) => /** @type {any} */ (row.querySelector(name));
  const plane = PLANES.has(m.kind),
    estimate = page.measuring.estimate(m),
    found = measured({ ...m, known: undefined }, estimate, page.unit);
  const first = found.unsure && found.range && !m.known, told = page.shown.result?.known.get(m.id);
  const slip = told?.predicted && m.known && !m.known.object
    ? unitSlip({ depth_m: m.known.value_m, text: m.known.text }, page.unit, told.predicted) : null;
  row.classList.toggle("suspect", Boolean(told?.code));
  row.classList.toggle("unsure", found.unsure && !m.known && !plane);
  for (const [name, text] of [["kind", m.name ?? ""], ["known", m.known?.text ?? ""]]) {
    const input = part(`.${name}`);
    if (document.activeElement !== input) input.value = text;
  }
  part(".kind").placeholder = KIND_TITLES[m.kind];
  part(".kind").setAttribute("aria-label", `Name of measurement ${i + 1}, ${KIND_TITLES[m.kind]}`);
  part(".known").hidden = plane || m.kind === "area";
  part(".known").setAttribute("aria-label", `Known length of measurement ${i + 1}`);
  const others = told?.predicted ? formatLength(told.predicted, page.unit) : "";
  const used = told?.code ? `${told.code === "outlier" ? "not used: " : ""}the others give ${others}` : "fits";
  setText(part(".value"), plane ? "counts" : first ? found.range : found.value);
  setText(
    part(".range"),
    m.known ? (told ? used : "") : plane ? "as one plane" : first ? `perhaps ${found.value}` : found.range,
  );
  setText(part(".chip"), slip ? `${slip.text}?` : "");
  part(".chip").hidden = !slip;
  part(".chip").onclick = () => slip && page.setKnown(m.id, slip.text);
  part(".icon").setAttribute("aria-label", `Delete measurement ${i + 1}`);
}

/** @param {Page} page @param {number} id */
function makeRow(page, id) {
  const row = element("li"), remove = element("button", "quiet icon", "✕");
  row.dataset.id = String(id);
  remove.addEventListener("click", () => page.removeMeasurement(id));
  const input = (/** @type {string} */ kind) =>
    Object.assign(element("input", kind), { autocomplete: "off", maxLength: 60 });
  const name = input("kind"),
    known = Object.assign(input("known"), { placeholder: "I know it: 74 cm, door …" });
  name.addEventListener("change", () => page.nameMeasurement(id, name.value.trim()));
  known.setAttribute("list", "objects");
  known.addEventListener("change", () => page.setKnown(id, known.value.trim()));
  row.append(name, element("span", "value"), element("span", "range"), remove, known, element("button", "chip"));
  return row;
}

/** @param {Page} page */
export function showNext(page) {
  const shares = page.solving.suggestions.map(
    (/** @type {any} */ { removes }, /** @type {number} */ i) => `${i + 1} removes ${Math.round(100 * removes)} %`,
  );
  $("next-hint").hidden = !$("next").checked;
  setText(
    $("next-hint"),
    shares.length
      ? `Rings mark where a measurement would help most. Of the uncertainty that is left: ${shares.join(", ")}.`
      : "Looking for the points that would help most …",
  );
}

/** @param {Page} page */
export function showCamera(page) {
  const { fov, session } = page;
  $("fov").value = fov ? String(Number(fov.deg.toFixed(2))) : "";
  $("fov-badge").hidden = fov?.source !== "assumed";
  $("fov").classList.toggle("assumed", fov?.source === "assumed");
  const { width, height } = session, wide = Math.max(width, height) > PANORAMA * Math.min(width, height);
  $("fov-panorama").hidden = !wide;
  const sources = {
    EXIF: "Read from the photo's EXIF.", sample: "Known for this sample.", given: "Given by you.",
    assumed: "Assumed, not measured: lengths across the photo may be off.",
  };
  setText(
    $("fov-hint"),
    fov ? sources[/** @type {keyof typeof sources} */ (fov.source)] : "Not known. 3D assumes 60° until you give it.",
  );
  setText($("depth-source"), session.relative_depth + (session.kind === "disparity" ? " (disparity)" : ""));
  $("licence").hidden = session.relative_depth !== page.info.estimator;
  setText($("licence"), `Its network is licensed under ${page.info.estimator_licence}.`);
}

/** Thumbnails of the photos in this tab. @param {Page} page */
export function showGallery(page) {
  const gallery = $("gallery"), projects = page.workspace.tabProjects();
  gallery.hidden = projects.length < 2;
  gallery.replaceChildren(
    ...projects.map((project) => {
      const item = element("span", "photo"),
        button = element("button", "thumb"),
        close = element("button", "quiet close", "✕");
      const { name, work } = project,
        current = project.id === page.project?.id;
      button.setAttribute("aria-label", `${name}, ${work.anchors.length} anchors`);
      button.setAttribute("aria-current", String(current));
      button.title = name;
      button.append(thumbnail(project));
      button.addEventListener("click", () => page.workspace.switchTo(project.id));
      close.setAttribute("aria-label", `Close ${name}`);
      close.title = "Close this photo; it stays under Continue";
      close.addEventListener("click", () => page.workspace.close(project.id));
      item.append(button, close);
      return item;
    }),
  );
  gallery.querySelector("[aria-current=true]")?.scrollIntoView({ block: "nearest", inline: "center" });
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

/** Projects kept in this browser, on the start screen. @param {Page} page @param {any[]} projects */
export function showRecent(page, projects) {
  $("recent").hidden = !projects.length;
  $("recent-list").replaceChildren(
    ...projects.map((project) => {
      const item = element("li"), open = element("button", "recent"), remove = element("button", "quiet icon", "✕");
      const words = element("span");
      words.append(
        element("b", "", project.name),
        element("small", "", `${project.work.anchors.length} anchors · ${when(project.updated)}`),
      );
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
