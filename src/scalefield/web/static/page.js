// The page: its state, and the consequences of an edit. workspace.js has projects, solving.js requests,
// tools.js tools, views.js and panel.js the display.

import { Card } from "./card.js";
import { $, choose, download, fillReading, setText, show, stem } from "./dom.js";
import { annotatedImage } from "./exports.js";
import { depthAnchors, nearestInside, rayLength } from "./geometry.js";
import { AnchorRows } from "./list.js";
import { showMeasurements, showPanel } from "./panel.js";
import { Measuring } from "./measuring.js";
import { aboutAnchors, measured, readingAt, writeAnchorTable, writeMeasurements } from "./readings.js";
import { aborted, isAbort } from "./server.js";
import { Sessions } from "./sessions.js";
import { Solving } from "./solving.js";
import { Stage } from "./stage.js";
import {
  PLANES, addAnchor, changeAnchor, changeMeasurement, emptyWork, givenOf, hasScale, movePoint, removeAnchor,
  removeMeasurement,
} from "./state.js";
import { Tools } from "./tools.js";
import { plainMetres, withUnit } from "./units.js";
import { Views } from "./views.js";
import { Workspace } from "./workspace.js";

/** @typedef {import("./state.js").Project} Project */
/** @typedef {import("./geometry.js").Pixel} Pixel */
/** @typedef {import("./readings.js").Result} Result */
/** @typedef {import("./readings.js").About} About */
/** The project on the screen, with what the server and the browser made of it.
 *  @typedef {{project: Project, session: import("./server.js").Session, photo: ImageBitmap, sharp: boolean,
 *    logMde: Float32Array, logTruth: Float32Array | null, result: Result | null, other: Result | null,
 *    basis: (import("./server.js").MapValues & {method: string, revision: number}) | null, basisWanted: string,
 *    photoPixels: Uint8ClampedArray | null,
 *    painted: Map<string, {first: OffscreenCanvas | null, second: OffscreenCanvas | null}>,
 *    abouts: {key: string, anchors: import("./state.js").Anchor[], all: About[]} | null,
 *    sampleAnchors: {u: number, v: number, depth_m: number}[] | null}} Loaded */

export class Page {
  /** @param {any} info @param {import("./server.js").Server} server @param {import("./store.js").Store} store */
  constructor(info, server, store) {
    this.info = info;
    this.server = server;
    this.store = store;
    this.methods = Object.fromEntries(info.methods.map((/** @type {any} */ m) => [m.name, m]));
    this.titles = Object.fromEntries(info.methods.map((/** @type {any} */ m) => [m.name, m.title]));
    this.unit = /** @type {import("./units.js").Unit} */ ("m");
    /** @type {Loaded | null} */
    this.loaded = null;
    /** @type {import("./state.js").Work | undefined} what was before something is dragged */
    this.beforeDrag = undefined;
    /** @type {number | null} the anchor whose distance was set last */
    this.asked = null;
    this.sessions = new Sessions(
      server, (key) => store.get("photos", key), (offline) => ($("offline").hidden = !offline),
    );
    this.workspace = new Workspace(this);
    this.solving = new Solving(this);
    this.measuring = new Measuring(this);
    this.tools = new Tools(this);
    this.views = new Views(this);
    this.stage = new Stage(/** @type {any} */ (this));
    this.card = new Card(this);
    this.rows = new AnchorRows($("anchor-list"), {
      read: (text) => this.readLength(text),
      onChange: (id, depth_m, text) => this.setDistance(null, depth_m, id, text),
      onRemove: (id) => this.removeAnchor(id),
      onHover: (id) => {
        this.stage.hoveredAnchor = id;
        this.stage.redraw();
      },
      onMove: (id, du, dv) => this.moveAnchor(id, du, dv),
      onError: (sentence) => this.showError(sentence),
    });
  }

  /** @returns {Project | null} the project that is shown */
  get project() {
    return this.loaded?.project ?? null;
  }

  /** @returns {Loaded} what is shown, where something must be */
  get shown() {
    if (!this.loaded) throw new Error("No photo is shown.");
    return this.loaded;
  }

  get session() {
    return this.shown.session;
  }

  /** @returns {import("./state.js").Work} */
  get work() {
    return this.project?.work ?? emptyWork();
  }

  get view() {
    return this.project?.settings.view ?? "photo";
  }

  get tool() {
    return this.tools.tool;
  }

  escape() {
    this.tools.escape();
  }

  finish() {
    this.tools.finish();
  }

  get fov() {
    return this.project?.settings.fov ?? null;
  }

  // ---- edits -------------------------------------------------------------------------------------

  /** @param {import("./state.js").Work} work */
  commit(work) {
    const { project } = this;
    if (!project) return;
    const given = [project.work, work].map((each) => JSON.stringify(givenOf(each)));
    const same = project.work.anchors === work.anchors && given[0] === given[1];
    project.work = work;
    this.workspace.history.commit(project.id, work);
    this.clearToast();
    if (same) {
      // Measurements that only read take the present result; nothing is solved again.
      this.measuring.update();
      this.stage.redraw();
      showPanel(this);
    } else this.edited();
    this.workspace.save();
  }

  undo() {
    this.take(this.workspace.history.undo());
  }

  redo() {
    this.take(this.workspace.history.redo());
  }

  /** @param {import("./state.js").Step | null} step */
  async take(step) {
    if (!step) return;
    const project = this.workspace.projects.get(step.project);
    if (!project) return;
    project.work = step.work;
    this.card.close(false);
    if (project.id !== this.project?.id) return void (await this.workspace.open(project, { step: false }));
    show("work");
    this.edited();
    this.workspace.save();
  }

  /** @param {Partial<import("./state.js").Settings>} settings */
  change(settings) {
    const { project } = this;
    if (!project) return;
    project.settings = { ...project.settings, ...settings };
    this.workspace.save();
  }

  /** @param {number} id */
  removeAnchor(id) {
    const i = this.work.anchors.findIndex((a) => a.id === id);
    if (i < 0) return;
    this.commit(removeAnchor(this.work, id));
    this.announce(`Anchor ${i + 1} removed.`);
  }

  /** @param {number} id @param {number} du @param {number} dv */
  moveAnchor(id, du, dv) {
    const anchor = this.work.anchors.find((a) => a.id === id);
    if (!anchor) return;
    this.commit(changeAnchor(this.work, id, nearestInside({ u: anchor.u + du, v: anchor.v + dv }, this.session)));
  }

  /** A length that was measured, or a known object, makes the measurement count; no text takes that back.
   *  @param {number} id @param {string} text */
  async setKnown(id, text) {
    const { objects } = this.info, object = Object.hasOwn(objects, text) ? text : "";
    try {
      const typed =
        text && !object ? { value_m: await this.readLength(text), text: withUnit(text, this.unit) } : undefined;
      const known = object ? { value_m: objects[object], text, object } : typed;
      this.commit(changeMeasurement(this.work, id, { known }));
      if (known && this.project?.settings.method !== "field") {
        this.showNote("Known lengths count with the Gaussian process only.", "Use it", () => {
          this.change({ method: "field" });
          this.clearToast();
          this.edited();
        });
      }
    } catch (e) {
      if (!isAbort(e)) this.showError(/** @type {Error} */ (e).message);
      showMeasurements(this);
    }
  }

  /** @param {number} id @param {string} name */
  nameMeasurement(id, name) {
    this.commit(changeMeasurement(this.work, id, { name }));
  }

  /** @param {number} id */
  removeMeasurement(id) {
    this.commit(removeMeasurement(this.work, id));
  }

  edited() {
    const { loaded } = this;
    if (!loaded) return;
    loaded.abouts = null;
    this.solving.wantNext();
    if (!hasScale(this.work, loaded.project.settings.method)) {
      this.solving.solver.cancel();
      this.solving.comparer.cancel();
      loaded.result = loaded.other = null;
      return this.views.showAll();
    }
    const { method, compare } = loaded.project.settings;
    this.solving.solver.request(this.solving.requestFor(method));
    if (compare) this.solving.comparer.request(this.solving.requestFor(compare));
    else {
      this.solving.comparer.cancel();
      loaded.other = null;
    }
    // The map is painted when the answer has arrived; until then only the edited anchor moves.
    this.stage.redraw();
    showPanel(this);
  }

  // ---- interface of the stage ---------------------------------------------------------------------

  /** @param {number} i */
  aboutAnchor(i) {
    const { shown: loaded } = this, neutral = this.view === "uncertainty" || !loaded.result;
    const key = `${this.unit} ${neutral}`;
    if (!loaded.abouts || loaded.abouts.key !== key || loaded.abouts.anchors !== this.work.anchors) {
      const colour = neutral
        ? () => "rgb(226 229 236)"
        : (/** @type {number} */ d) => this.views.metreScale.colour(Math.log(d));
      const { session, fov } = this;
      const ray = (/** @type {import("./state.js").Anchor} */ a) =>
        a.slant && fov ? rayLength(session, fov.deg, a) : 1;
      loaded.abouts = {
        key, anchors: this.work.anchors, all: aboutAnchors(this.work.anchors, loaded.result, this.unit, colour, ray),
      };
    }
    return loaded.abouts.all[i];
  }

  /** Everything that is drawn over the picture. @param {Pixel | null} cursor where the next point would lie */
  drawing(cursor) {
    const { loaded, tools } = this,
      { pending } = tools,
      { pin } = this.card,
      { anchors, measurements } = this.work,
      result = loaded?.result;
    const line = (/** @type {import("./measuring.js").Shape} */ shape, active = false) => ({
      ...shape, active, ...measured(shape, this.measuring.estimate(shape), this.unit),
    });
    const suspects = result ? anchors.filter((a) => result.suspects.has(result.index.get(a.id) ?? -1)) : [];
    const lines = loaded ? measurements.map((m) => line(m)) : [];
    if (pending)
      lines.push({
        ...line({ ...pending, points: [...pending.points, ...(cursor ? [cursor] : [])] }, true), unsure: false,
      });
    const first = new Set([pin?.id ?? -1, this.stage.hoveredAnchor ?? -1, ...suspects.map((a) => a.id)]);
    const about = (/** @type {number} */ i) => this.aboutAnchor(i);
    /** @type {import("./marks.js").Scene} */
    const scene = { anchors, about, first, hovered: null, suggestions: this.solving.suggestions, lines };
    return { share: tools.share, pin, profileRow: tools.profileRow, scene };
  }

  /** The picture under everything, in the photo's proportions. */
  picture() {
    const { loaded, view } = this;
    if (!loaded) return null;
    const { painted, photo, sharp } = loaded;
    const map = painted.get(view);
    const blend = view === "depth" ? loaded.project.settings.blend : 0;
    if (view === "photo" || !map)
      return { first: photo, second: null, photo, blend: 0, share: this.tools.share, sharp };
    return { first: map.first, second: map.second, photo, blend, share: this.tools.share, sharp: false };
  }

  /** @param {Pixel | null} pixel */
  pointed(pixel) {
    const readout = $("readout"), reading = pixel && !this.card.pin ? this.reading(pixel) : null;
    readout.hidden = !reading;
    if (reading && pixel) {
      fillReading(readout, reading);
      placeReadout(readout, this.stage, pixel);
    }
    this.measuring.point(pixel);
    this.views.markBar(pixel);
    if (this.tools.profileRow !== null) this.views.showProfile();
  }

  /** @param {Pixel} pixel */
  reading(pixel) {
    const names = { titles: this.titles, view: this.view };
    return readingAt(this.shown, pixel, this.unit, names, this.measuring.depthAt(pixel));
  }

  /** New estimates have arrived. */
  estimated() {
    this.card.showReading();
    const { cursor } = this.stage,
      reading = cursor && !this.card.pin && !$("readout").hidden ? this.reading(cursor) : null;
    if (reading) fillReading($("readout"), reading);
    this.stage.redraw();
    this.views.cloud?.redraw();
    showMeasurements(this);
    if (this.tools.profileRow !== null) this.views.showProfile();
  }

  /** Text about a pixel for screen readers. @param {Pixel} pixel */
  describePixel(pixel) {
    const reading = this.reading(pixel);
    const anchor = this.work.anchors.findIndex((a) => a.id === this.stage.hoveredAnchor);
    return [
      anchor >= 0 ? `Anchor ${anchor + 1}` : "",
      reading
        ? `${reading.value}${reading.range ? `, between ${reading.range}` : ""}`
        : `${pixel.u} right, ${pixel.v} down`,
    ]
      .filter(Boolean)
      .join(". ");
  }

  /** @param {Pixel} pixel @param {string} pointer */
  pressed(pixel, pointer) {
    if (this.tools.tool === "measure") this.tools.measureAt(pixel);
    else if (this.tools.tool === "profile") this.tools.profileAt(pixel.v);
    else if (this.card.pin) this.card.close(false);
    else this.card.open(pixel, null, pointer);
  }

  /** @param {number} id @param {string} pointer */
  anchorPressed(id, pointer) {
    const anchor = this.work.anchors.find((a) => a.id === id);
    if (anchor) this.card.open(anchor, id, pointer);
  }

  /** @param {import("./state.js").Handle} handle @param {Pixel} pixel @param {boolean} done */
  dragged(handle, pixel, done) {
    const { project } = this;
    if (!project) return;
    this.card.close(false);
    this.beforeDrag ??= project.work;
    const work = movePoint(project.work, handle, pixel);
    project.work = work;
    if (done) {
      const { beforeDrag } = this;
      this.beforeDrag = undefined;
      project.work = beforeDrag;
      this.workspace.history.amend(beforeDrag);
      return this.commit(work);
    }
    const moved = project.work.measurements.find((m) => m.id === handle.id);
    if (handle.point === null || moved?.known || PLANES.has(moved?.kind ?? "")) return this.edited();
    this.measuring.update();
    this.stage.redraw();
    showMeasurements(this);
  }

  /** @param {number | null} id */
  hovered(id) {
    this.rows.highlight(id);
    this.stage.element.dataset.hovered = String(this.work.anchors.findIndex((a) => a.id === id) + 1 || "");
  }

  // ---- messages ------------------------------------------------------------------------------------

  /** @param {string} words */
  announce(words) {
    clearTimeout(this.announcing);
    this.announcing = setTimeout(() => setText($("live"), words), 250);
  }

  /** @param {string} words */
  showError(words) {
    const place = document.body.dataset.screen === "work" ? $("stage-area") : document.body;
    if ($("toast").parentElement !== place) place.append($("toast"));
    setText($("toast-text"), words[0].toUpperCase() + words.slice(1));
    $("toast").classList.remove("note");
    $("toast-action").hidden = true;
    $("toast").hidden = false;
  }

  /** A message that is no error, with something that can be done. @param {string} words @param {string} action
   *  @param {() => void} take */
  showNote(words, action, take) {
    this.showError(words);
    $("toast").classList.add("note");
    setText($("toast-action"), action);
    $("toast-action").onclick = take;
    $("toast-action").hidden = false;
  }

  clearToast() {
    $("toast").hidden = true;
  }

  /** On a phone the controls are a sheet with tabs. @param {string} name @param {boolean} [open] */
  showSheet(name, open = true) {
    if ($("panel").dataset.tab !== name) $("panel-body").scrollTop = 0;
    $("panel").dataset.tab = name;
    choose("sheet-tabs", "sheet", name, "aria-selected");
    $("panel").classList.toggle("open", open);
    $("sheet-toggle").setAttribute("aria-expanded", String(open));
  }

  /** @param {string} name */
  async download(name) {
    const { project, loaded } = this;
    if (!project) return;
    const named = `${stem(project.name)}_${name}`;
    const text = (/** @type {string} */ words) => download(new Blob([words], { type: "text/csv" }), named);
    try {
      if (name === "anchors.csv") return text(writeAnchorTable(depthAnchors(project)));
      if (name === "measurements.csv") return text(await this.measurementTable());
      if (name === "annotated.png") return download(await annotatedImage(this), named);
      if (name.startsWith("cloud.") && !this.fov) return this.tools.askFov(() => this.download(name));
      this.announce(`${name} is being made.`);
      const { edit } = this.solving.requestFor(project.settings.method);
      const body = { ...edit, max_points: Number($("max-points").value) };
      const button = $("downloads").querySelector(`[data-file="${name}"]`);
      button.setAttribute("aria-busy", "true");
      try {
        download(await this.sessions.use(project, (id) => this.server.file(id, name, body)), named);
      } finally {
        button.removeAttribute("aria-busy");
      }
      this.announce(`${name} is downloaded.`);
    } catch (e) {
      this.showError(/** @type {Error} */ (e).message);
    }
  }

  async measurementTable() {
    await this.measuring.update();
    return writeMeasurements(this.work.measurements, (m) => this.measuring.estimate(m), this.shown.result, this.fov);
  }

  /** The metres of a typed length; the server reads all but plain numbers. Aborted when another photo is shown.
   *  @param {string} text */
  async readLength(text) {
    const { loaded, unit } = this;
    const metres =
      plainMetres(text, unit) ?? (await this.sessions.withRetries(() => this.server.readLength(text, unit)));
    if (this.loaded !== loaded) throw aborted();
    return metres;
  }

  /** The anchors of a table, which must lie in the photo. Aborted when another photo is shown.
   *  @param {string | Blob} table */
  async readTable(table) {
    const { shown: loaded } = this;
    const anchors = await this.sessions.use(loaded.project, (id) => this.server.readTable(id, table));
    if (this.loaded !== loaded) throw aborted();
    return anchors;
  }

  /** @param {Pixel | null} pixel of a new anchor @param {number} depth_m
   *  @param {number | null} id of an anchor that is there
   *  @param {string} typed @param {boolean} [slant] whether it is along the ray; undefined leaves that */
  setDistance(pixel, depth_m, id, typed, slant) {
    const text = withUnit(typed, this.unit), along = slant === undefined ? {} : { slant };
    if (id !== null) this.commit(changeAnchor(this.work, id, { depth_m, text, ...along }));
    else if (pixel) this.commit(addAnchor(this.work, { u: pixel.u, v: pixel.v, depth_m, text, ...along }));
    this.asked = id ?? this.work.anchors.at(-1)?.id ?? null;
    this.announce(`Distance set to ${text}.`);
  }

  /** Ask about the distance that was set last, if another unit would agree with the others. */
  askUnit() {
    const i = this.work.anchors.findIndex((a) => a.id === this.asked), slip = i >= 0 ? this.aboutAnchor(i).slip : null;
    this.asked = null;
    const { id, text } = this.work.anchors[i] ?? {};
    if (slip) this.showNote(`${text} is far from what is expected there.`, `Did you mean ${slip.text}?`, () => {
      this.clearToast();
      this.setDistance(null, slip.metres, id, slip.text);
    });
  }
}

/** Place a node beside a pixel, on the other side if there is no space. @param {HTMLElement} node
 *  @param {Stage} stage @param {Pixel} pixel */
function placeReadout(node, stage, pixel) {
  const { view, size } = stage,
    x = view.x + (pixel.u + 0.5) * view.scale,
    y = view.y + (pixel.v + 0.5) * view.scale;
  const { offsetWidth: w, offsetHeight: h } = node,
    gap = stage.loupe ? 30 : 16;
  const fit = (/** @type {number} */ at, /** @type {number} */ length, /** @type {number} */ space) =>
    Math.max(4, Math.min(at + gap + length > space ? at - gap - length : at + gap, space - length - 4));
  node.style.left = `${fit(x, w, size.width)}px`;
  node.style.top = `${fit(y, h, size.height)}px`;
}
