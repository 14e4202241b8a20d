// Projects: opened from photos, files and the browser's database, and kept there.

import { $, choose, download, element, sentence, setText, show, stem } from "./dom.js";
import { projectZip } from "./exports.js";
import { showCamera, showGallery, showRecent } from "./panel.js";
import { unpackProject } from "./project_file.js";
import { isAbort } from "./server.js";
import { History, emptyWork, hasWork, newId, replaceAnchors } from "./state.js";
import { VIEWS } from "./views.js";

/** @typedef {import("./state.js").Project} Project */

const FULL_SHARE = 0.8; // of the browser's space for this page, above which projects without work are deleted
const MOST_KEPT_ANCHORS = 20000; // of all steps back that are kept in the browser
const CANCELLED = "cancelled";
const LARGEST_BITMAP = 4096; // longer side of the photo as it is drawn
const PHOTO_FILES = /\.(jpe?g|png|webp|bmp|heic|heif|tiff?|gif|avif)$/i;
const DEPTH_FILES = /\.(npy|npz|exr|pfm)$/i;

export class Workspace {
  /** @param {import("./page.js").Page} page */
  constructor(page) {
    this.page = page;
    this.tabId = "";
    /** @type {Map<string, Project>} */
    this.projects = new Map();
    this.history = new History();
    this.opening = new AbortController();
    this.writes = 0;
    this.asked = false;
    /** @type {any} */
    this.sampleAnchors = null;
    /** @type {import("./store.js").OtherTabs | null} */
    this.otherTabs = null;
  }

  /** A new project for a photo; undo leads back to the one before.
   *  @param {Blob} photo @param {string} name @param {Partial<Project>} [given] */
  async addProject(photo, name, given = {}) {
    const project = { ...this.newProject(name, given), photo: newId() };
    await this.page.store.write(["photos", project.photo, photo], ["projects", project.id, project]);
    this.projects.set(project.id, project);
    this.persist();
    return project;
  }

  /** Ask once for storage that the browser does not clear when the disk is full. */
  async persist() {
    if (this.asked || !navigator.storage?.persist) return;
    this.asked = true;
    await navigator.storage.persist();
  }

  /** @param {string} name @param {Partial<Project>} given @returns {Project} */
  newProject(name, given) {
    const settings = { method: this.page.info.method, compare: "", view: "photo", blend: 0, fov: null };
    return {
      id: newId(), name, photo: "", sample: "", width: 0, height: 0, depth: null, settings, work: emptyWork(),
      updated: Date.now(), thumbnail: null, ...given,
    };
  }

  /** Load a project and show it; the present project stays until that succeeds.
   *  @param {Project} project @param {{step?: boolean}} [options] whether this is a step of the history */
  async open(project, { step = true } = {}) {
    this.opening.abort();
    const { signal } = (this.opening = new AbortController());
    try {
      show("working");
      this.progress({ step: "opening", progress: 0.01 });
      const loaded = await this.load(project, signal);
      signal.throwIfAborted();
      this.page.solving.solver.cancel();
      this.page.solving.comparer.cancel();
      this.page.solving.suggester.cancel();
      this.page.loaded = loaded;
      delete project.deleted; // by another tab
      if (step) this.history.commit(project.id, project.work);
      this.page.tools.pending = null;
      this.page.solving.suggestions = [];
      this.enter();
      return true;
    } catch (e) {
      const replaced = signal.aborted && signal.reason !== CANCELLED; // by another that is opened
      if (replaced) return false;
      if (!this.projectNeeded(project.id)) await this.discard(project.id);
      this.page.loaded ? show("work") : this.showStart();
      if (!signal.aborted) this.page.showError(/** @type {Error} */ (e).message);
      return false;
    }
  }

  /** Cancel the opening of a project. */
  cancelOpening() {
    this.opening.abort(CANCELLED);
  }

  /** Forget a project that could not be opened. @param {string} id */
  async discard(id) {
    this.projects.delete(id);
    await this.page.store.write(["projects", id, undefined]);
  }

  /** @param {string} id */
  projectNeeded(id) {
    return this.history.projects().has(id);
  }

  /** @param {Project} project @param {AbortSignal} signal */
  async load(project, signal) {
    const session = await this.page.sessions.ready(project, (s) => this.progress(s), signal);
    const [{ maps }, image] = await Promise.all([
      this.page.sessions.use(project, (id) => this.page.server.packed(id, "maps", signal), signal),
      this.photoImage(project, session, signal),
    ]);
    project.width = session.width;
    project.height = session.height;
    if (!project.settings.fov && session.fov_deg)
      project.settings = {
        ...project.settings,
        fov: { deg: session.fov_deg, source: session.fov_source === "sample" ? "sample" : "EXIF" },
      };
    const { methods, info } = this.page,
      { method, compare, view } = project.settings;
    project.settings = {
      ...project.settings, method: Object.hasOwn(methods, method) ? method : info.method,
      compare: Object.hasOwn(methods, compare) ? compare : "", view: Object.hasOwn(VIEWS, view) ? view : "photo",
    };
    project.thumbnail ??= await thumbnailOf(image);
    if (session.anchors) this.sampleAnchors = session.anchors;
    return {
      project, session, photo: image, sharp: image.width >= session.width,
      logMde: maps.log_mde_depth.values, logTruth: maps.log_truth?.values ?? null,
      result: null, other: null, basis: null, basisWanted: "", abouts: null, photoPixels: null, painted: new Map(),
      sampleAnchors: project.sample ? this.sampleAnchors ?? null : null,
    };
  }

  /** The photo to draw: the file itself where the browser can read it, else as the server shows it.
   *  @param {Project} project @param {any} session @param {AbortSignal} signal */
  async photoImage(project, session, signal) {
    const file = await this.page.store.get("photos", project.photo);
    const shrink = Math.min(1, LARGEST_BITMAP / Math.max(session.width, session.height));
    const size =
      shrink < 1
        ? {
            resizeWidth: Math.round(session.width * shrink),
            resizeHeight: Math.round(session.height * shrink),
            resizeQuality: /** @type {"high"} */ ("high"),
          }
        : {};
    try {
      const image = await createImageBitmap(file, size);
      if (Math.abs(image.width / image.height - session.width / session.height) < 0.02) return image;
    } catch {
      /* HEIC, mostly */
    }
    return createImageBitmap(await this.page.sessions.use(project, (id) => this.page.server.photo(id, signal), signal));
  }

  /** Show what is loaded. */
  enter() {
    const { project, session } = this.page.shown;
    setText($("photo-name"), `${project.name} · ${session.width}×${session.height}`);
    $("blend").value = String(100 * project.settings.blend);
    show("work");
    this.page.card.close(false);
    this.page.tools.setTool("point");
    this.page.stage.fit();
    showCamera(this.page);
    this.page.tools.setView(project.settings.view);
    this.page.edited();
    this.save();
    showGallery(this.page);
    if (document.activeElement === document.body) $("stage").focus({ preventScroll: true });
    this.page.announce(`${project.name} is ready. ${this.page.work.anchors.length ? "" : "Set the first distance."}`);
  }

  /** @param {string} id */
  async switchTo(id) {
    const project = this.projects.get(id);
    if (project && id !== this.page.project?.id) await this.open(project);
    else show("work");
  }

  /** Take a photo out of this tab; the browser keeps its project. @param {string} id */
  async close(id) {
    const others = this.tabProjects().filter((p) => p.id !== id), i = this.tabProjects().findIndex((p) => p.id === id);
    this.projects.delete(id);
    this.history.forget(id);
    if (id === this.page.project?.id) await this.open(others[Math.min(i, others.length - 1)]);
    else {
      showGallery(this.page);
      await this.save();
    }
  }

  tabProjects() {
    return [...this.projects.values()];
  }

  /** @param {{step: string, progress: number}} session */
  progress({ step, progress }) {
    $("progress").value = progress;
    setText($("working-step"), `${step[0].toUpperCase()}${step.slice(1)} …`);
  }

  async openSample() {
    const name = this.page.info.samples[0];
    try {
      const photo = await this.page.server.samplePhoto(name);
      await this.open(await this.addProject(photo, `${name}.jpg`, { sample: name }));
    } catch (e) {
      this.page.showError(/** @type {Error} */ (e).message);
    }
  }

  /** Files that were chosen, dropped or pasted. @param {File[]} files */
  async receive(files) {
    const photos = files.filter((f) => PHOTO_FILES.test(f.name) || f.type.startsWith("image/"));
    const rest = files.filter((f) => !photos.includes(f));
    const limit = this.page.info.limits.upload_bytes;
    const large = photos.find((f) => f.size > limit);
    if (large)
      return this.page.showError(
        `${large.name} has ${(large.size / 2 ** 20).toFixed(0)} MiB, and at most ${limit / 2 ** 20} are taken.`,
      );
    try {
      const known = photos.length ? await this.workOn(photos[0]) : null;
      let first = null;
      for (const photo of photos) {
        const project = await this.addProject(photo, photo.name || "pasted.png");
        first ??= project;
      }
      if (first && (await this.open(first)) && known) {
        this.page.showNote("You have worked on this photo before.", "Open that work", () => this.openKept(known.id));
      }
      for (const file of rest) await this.receiveOther(file);
    } catch (e) {
      this.page.showError(`This browser could not keep the photo (${/** @type {Error} */ (e).message}).`);
    }
  }

  /** The latest project with work on a photo of that name and size. @param {File} file
   *  @returns {Promise<Project | undefined>} */
  async workOn(file) {
    const [sizes, projects] = await Promise.all([this.page.store.photos(), this.page.store.all("projects")]);
    return projects.sort((a, b) => b.updated - a.updated)
      .find((p) => !p.deleted && hasWork(p) && p.name === file.name && sizes.get(p.photo) === file.size);
  }

  /** @param {File} file */
  async receiveOther(file) {
    if (/\.zip$/i.test(file.name)) return this.openProjectFile(file);
    if (DEPTH_FILES.test(file.name)) {
      if (this.page.loaded) return this.bringDepth(file);
      return this.page.showError("That is a depth file. Choose its photo first, then give the depth under Camera.");
    }
    if (/\.(csv|tsv|txt)$/i.test(file.name) || file.type.startsWith("text/")) {
      if (!this.page.loaded) return this.page.showError("That is a table of anchors. Choose the photo first.");
      return this.takeTable(file, file.name);
    }
    // Any other file goes to the server, whose error states why it is not a photo.
    await this.open(await this.addProject(file, file.name));
  }

  /** @param {string | Blob} table @param {string} [name] */
  async takeTable(table, name = "") {
    try {
      const rows = await this.page.readTable(table);
      this.page.commit(replaceAnchors(this.page.work, rows));
      this.page.announce(`${rows.length} anchors read.`);
    } catch (e) {
      if (!isAbort(e)) this.page.showError(sentence(`${name ? `${name}, ` : ""}${/** @type {Error} */ (e).message}`));
    }
  }

  /** @param {File} file */
  async openProjectFile(file) {
    try {
      const { project: saved, photo, depth } = await unpackProject(new Uint8Array(await file.arrayBuffer()));
      const blob = (/** @type {Uint8Array} */ bytes) => new Blob([/** @type {BlobPart} */ (bytes)]);
      const settings = { ...this.newProject("", {}).settings, ...saved.settings };
      const project = await this.addProject(blob(photo), saved.name, { ...saved, settings, depth: null });
      if (depth && saved.depth) await this.keepDepth(project, blob(depth), { ...saved.depth, key: newId() });
      await this.open(project);
    } catch (e) {
      this.page.showError(/** @type {Error} */ (e).message);
    }
  }

  async saveProjectFile() {
    const { project } = this.page;
    if (!project) return;
    try {
      download(await projectZip(this.page), `${stem(project.name)}.scalefield.zip`);
      this.page.announce("The project is saved.");
    } catch (e) {
      this.page.showError(/** @type {Error} */ (e).message);
    }
  }

  /** @param {File | Blob & {name: string}} file @param {string} [array] */
  async bringDepth(file, array = "") {
    const kind = $("depth-kind").value, { shown: loaded } = this.page, { project } = loaded;
    if (!kind) {
      this.page.showSheet("method");
      $("depth-kind").closest("details").open = true;
      $("depth-kind").focus();
      return this.page.showError(
        "Choose first what the depth file holds: depth grows with distance, disparity falls with it.",
      );
    }
    const depth = { key: newId(), name: file.name, kind, resize: $("depth-resize").checked, array };
    try {
      const session = await this.page.sessions.use(project, async (id) =>
        this.page.server.untilReady(await this.page.server.bringDepth(id, file, depth), () => {}),
      );
      await this.keepDepth(project, file, depth);
      if (this.page.loaded !== loaded) return;
      const { maps } = await this.page.sessions.use(project, (id) => this.page.server.packed(id, "maps"));
      Object.assign(loaded, { session, logMde: maps.log_mde_depth.values, basis: null, painted: new Map() });
      showCamera(this.page);
      this.page.edited();
      this.save();
      this.page.announce(`Relative depth now comes from ${file.name}.`);
    } catch (e) {
      const { code, choices, message } = /** @type {any} */ (e);
      if (code === "choose_array") return this.chooseArray(file, choices);
      this.page.showError(message);
    }
  }

  /** @param {Project} project @param {Blob} file @param {import("./state.js").DepthFile} depth */
  async keepDepth(project, file, depth) {
    await this.page.store.write(["photos", depth.key, file], ["projects", project.id, { ...project, depth }]);
    project.depth = depth;
  }

  /** @param {any} file @param {string[]} names */
  chooseArray(file, names) {
    $("array-name").replaceChildren(
      ...names.map((name) => Object.assign(element("option", "", name), { value: name })),
    );
    const dialog = $("array-dialog");
    dialog.returnValue = "cancel";
    dialog.showModal();
    dialog.addEventListener(
      "close", () => dialog.returnValue === "ok" && this.bringDepth(file, $("array-name").value), { once: true },
    );
  }

  // ---- saving ------------------------------------------------------------------------------------

  /** Write the project and this tab's state to the browser's database. */
  async save() {
    const { project } = this.page;
    if (!project) return;
    project.updated = Date.now();
    this.writes += 1;
    document.body.dataset.saved = "no";
    try {
      const { past, present, future } = this.history.shortened(MOST_KEPT_ANCHORS), id = this.tabId;
      const tab = { id, projects: [...this.projects.keys()], history: { past, present, future }, updated: Date.now() };
      await this.page.store.write(["projects", project.id, { ...project }], ["tabs", id, tab]);
    } catch (e) {
      this.page.showError(
        `This browser could not keep your work (${/** @type {Error} */ (e).message}); save the project as a file.`,
      );
    } finally {
      this.writes -= 1;
      if (!this.writes) document.body.dataset.saved = "yes";
    }
  }

  /** Open the projects that this tab had open. @param {string} tabId
   *  @param {boolean} copied whether another tab has it open too */
  async restore(tabId, copied) {
    const kept = await this.page.store.get("tabs", tabId);
    this.tabId = copied || !tabId ? newId() : tabId;
    if (!kept) return false;
    /** @type {Map<string, string>} */
    const ids = new Map();
    for (const id of kept.projects) {
      const project = await this.page.store.get("projects", id);
      if (!project) continue;
      if (copied) project.id = newId();
      ids.set(id, project.id);
      this.projects.set(project.id, project);
    }
    const history = new History(kept.history).renamed(ids);
    this.history = history;
    const present = history.present && this.projects.get(history.present.project);
    if (!present || !history.present) return false;
    present.work = history.present.work;
    return this.open(present, { step: false });
  }

  async showStart() {
    show("start");
    setText($("back"), this.page.project ? `Back to ${this.page.project.name}` : "");
    $("back").hidden = !this.page.project;
    const kept = (await this.page.store.all("projects"))
      .filter((p) => !p.deleted && (!this.projects.has(p.id) || !this.page.project));
    showRecent(this.page, kept.sort((a, b) => b.updated - a.updated));
  }

  back() {
    if (this.page.loaded) show("work");
  }

  /** @param {string} id */
  async openKept(id) {
    this.page.clearToast();
    const kept = this.projects.get(id) ?? (await this.page.store.get("projects", id));
    if (!kept) return;
    // A project that another tab has open is copied: the two do not disturb each other.
    const project = (await this.otherTabs?.haveOpen(id)) ? { ...kept, id: newId(), name: kept.name } : kept;
    this.projects.set(project.id, project);
    await this.open(project);
  }

  /** Delete a project from the list; it can be had back for a day, until `tidy` removes it.
   *  @param {string} id @param {boolean} [deleted] */
  async deleteKept(id, deleted = true) {
    const project = await this.page.store.get("projects", id);
    if (!project) return;
    const { deleted: _, ...kept } = project;
    await this.page.store.write(["projects", id, deleted ? { ...kept, deleted: Date.now() } : kept]);
    if (deleted) this.page.showNote(`${project.name} is deleted.`, "Undo", () => this.deleteKept(id, false));
    else this.page.clearToast();
    await this.showStart();
  }

  /** Delete what nobody can miss, and projects without work where the browser's space runs out. */
  async tidy() {
    const { usage = 0, quota = Infinity } = (await navigator.storage?.estimate?.()) ?? {};
    const isOpen = async (/** @type {Project} */ { id }) =>
      this.projects.has(id) || Boolean(await this.otherTabs?.haveOpen(id));
    await this.page.store.tidy(isOpen, usage - FULL_SHARE * quota);
  }

  /** @param {string} id whether this tab has that tab id or project open */
  holds(id) {
    return id === this.tabId || this.projects.has(id);
  }
}

/** @param {ImageBitmap} image @returns {Promise<Blob | null>} */
async function thumbnailOf(image) {
  const scale = 96 / Math.max(image.width, image.height);
  const canvas = new OffscreenCanvas(
    Math.max(1, Math.round(image.width * scale)), Math.max(1, Math.round(image.height * scale)),
  );
  /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d")).drawImage(
    image,
    0,
    0,
    canvas.width,
    canvas.height,
  );
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.75 });
}
