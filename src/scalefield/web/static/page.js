// The page: what is loaded, what is chosen, and what follows from it.

import { AnchorList, parseCsv, toCsv } from "./anchors.js";
import * as api from "./api.js";
import { drawBasis } from "./basis.js";
import { Cloud } from "./cloud.js";
import { composeLogDepth, depthScale, factorScale, paint, percentiles, point, ticks, upsample } from "./maps.js";
import { drawProfile } from "./profile.js";
import { Stage, element, listAnchors } from "./stage.js";
import { formatLength, formatNumber, formatPercent, inUnit } from "./units.js";

const $ = (id) => document.getElementById(id);
const ASSUMED_FOV = 60;
const NINETY = 1.645; // standard deviations to either side that hold 90 % of a normal distribution
const WORTH_SAYING = 1.5; // standard deviations from which it is told what the other anchors say
const DEPTH_FILES = /\.(npy|npz|exr|pfm)$/i;

export class Page {
  constructor(info) {
    this.info = info;
    this.unit = "m";
    this.view = "photo";
    this.tool = "anchor";
    this.method = info.method;
    this.compareWith = "";
    this.fovDeg = null;
    this.session = null;
    this.anchors = new AnchorList(() => this.edited());
    this.clear();
    this.stage = new Stage(this);
    this.cloud = null;
    this.solves = new api.LatestOnly((wish) => this.solve(wish));
    this.comparisons = new api.LatestOnly((wish) => this.solveOther(wish));
    this.hints = new api.LatestOnly((wish) => this.suggest(wish));
    this.bases = new api.LatestOnly((method) => this.loadBasis(method));
  }

  /** Forget everything that belongs to one photo. */
  clear() {
    this.result = null; // {header, index, logScale, logDepth, stdLog}
    this.other = null; // the same for the method compared with
    this.logMde = null;
    this.logTruth = null;
    this.basis = null;
    this.next = []; // where to measure next
    this.measured = [];
    this.profileRow = null;
  }

  // ---- loading -------------------------------------------------------------------------------

  async open(start) {
    const before = this.session;
    try {
      show("working");
      this.progress({ step: "sending the photo", progress: 0.02 });
      let session = await start();
      this.sampleAnchors = session.anchors ?? null;
      session = await this.untilReady(session);
      this.session = session;
      if (before) api.dropSession(before.id);
      this.clear();
      await this.takeMaps();
      this.fovDeg = session.fov_deg;
      $("photo-name").textContent = `${session.name} · ${session.width}×${session.height}`;
      $("sample-row").hidden = !this.sampleAnchors;
      show("work");
      this.anchors.reset();
      this.showCamera();
      this.setView("photo");
      this.setTool("anchor");
      this.say(`${session.name} is ready. Place the first anchor.`);
    } catch (e) {
      show(this.session ? "work" : "start");
      this.complain(e.message);
    }
  }

  async untilReady(session) {
    while (session.state !== "ready") {
      if (session.state === "failed") throw new Error(session.error);
      this.progress(session);
      await new Promise((go) => setTimeout(go, 120));
      session = await api.getSession(session.id);
    }
    return session;
  }

  progress({ step, progress }) {
    $("progress").value = progress;
    $("working-step").textContent = `${step[0].toUpperCase()}${step.slice(1)} …`;
  }

  async takeMaps() {
    const photo = new Image();
    photo.src = api.photoUrl(this.session.id);
    const [{ maps }] = await Promise.all([api.getMaps(this.session.id), photo.decode()]);
    this.photo = photo;
    this.logMde = maps.log_mde_depth.values;
    this.logTruth = maps.log_truth?.values ?? null;
    this.photoPixels = null;
  }

  async bringDepth(file) {
    const kind = $("depth-kind").value;
    if (!kind) {
      $("depth-kind").closest("details").open = true;
      $("depth-kind").focus();
      this.complain("Say first what the depth file holds: depth grows with distance, disparity falls with it.");
      return;
    }
    try {
      this.session = await this.untilReady(await api.bringDepth(this.session.id, file, kind, $("depth-resize").checked));
      this.basis = null;
      await this.takeMaps();
      this.showCamera();
      this.edited();
      this.say(`Relative depth now comes from ${file.name}.`);
    } catch (e) {
      this.complain(e.message);
    }
  }

  receive(file) {
    if (/\.csv$/i.test(file.name) || file.type === "text/csv") return this.receiveCsv(file);
    if (DEPTH_FILES.test(file.name)) {
      if (this.session) return this.bringDepth(file);
      return this.complain("That is a depth file. Load its photo first, then give the depth under Camera.");
    }
    if (file.size > this.info.limits.upload_bytes) {
      return this.complain(`${file.name} has ${(file.size / 2 ** 20).toFixed(0)} MiB, and at most ${this.info.limits.upload_bytes / 2 ** 20} are taken.`);
    }
    return this.open(() => api.createSession(file));
  }

  async receiveCsv(file) {
    if (!this.session) return this.complain("That is a table of anchors. Load the photo first.");
    try {
      this.anchors.replaceAll(parseCsv(await file.text(), this.session.width, this.session.height));
    } catch (e) {
      this.complain(`${file.name}: ${e.message}`);
    }
  }

  // ---- edits ---------------------------------------------------------------------------------

  edited() {
    if (!this.session) return;
    this.wantNext();
    if (!this.anchors.items.length) {
      this.result = this.other = null;
      return this.showAll();
    }
    this.solves.request(this.wish(this.method));
    if (this.compareWith) this.comparisons.request(this.wish(this.compareWith));
    // The map is painted when the answer is here; until then only what was touched moves.
    this.stage.draw();
    this.showPanel();
  }

  /** Ask where to measure next, if that is to be shown. */
  wantNext() {
    if ($("next").checked) this.hints.request(this.wish(this.method));
    else this.next = [];
  }

  async suggest({ id, anchors }) {
    try {
      const next = await api.suggest(id, anchors);
      if (this.session?.id !== id || !$("next").checked) return;
      this.next = next;
      this.stage.drawOverlay();
      this.showNext();
    } catch (e) {
      this.complain(e.message);
    }
  }

  wish(method) {
    const { items } = this.anchors;
    return { id: this.session.id, method, items, anchors: items.map(({ u, v, depth_m }) => ({ u, v, depth_m })) };
  }

  async solve(wish) {
    try {
      const result = await this.recover(wish);
      if (!result || !this.anchors.items.length) return;
      this.result = result;
      this.showAll();
    } catch (e) {
      this.complain(e.message);
    }
  }

  async solveOther(wish) {
    try {
      const other = wish.method === this.compareWith ? await this.recover(wish) : null;
      if (!other) return;
      this.other = other;
      this.showAll();
    } catch (e) {
      this.compareWith = $("compare").value = "";
      this.other = null;
      this.complain(e.message);
    }
  }

  async recover({ id, method, items, anchors }) {
    const { header, maps } = await api.recover(id, anchors, method);
    if (this.session?.id !== id || header.revision !== this.session.revision) return null;
    const logScale = upsample(maps.log_scale, this.session);
    const index = new Map(items.map((a, i) => [a.id, i]));
    const stdLog = maps.std_log ? upsample(maps.std_log, this.session) : null;
    return { header, index, logScale, stdLog, logDepth: composeLogDepth(this.logMde, logScale, header.limits_m) };
  }

  async loadBasis(method) {
    const { id } = this.session;
    try {
      const { header, maps } = await api.getBasis(id, method);
      if (this.session.id !== id) return;
      this.basis = { method, revision: header.revision, ...maps.basis_maps };
      this.showView();
    } catch (e) {
      this.complain(e.message);
    }
  }

  // ---- what is known -------------------------------------------------------------------------

  displayed({ u, v }) {
    const { width, height, display_width: w, display_height: h } = this.session;
    return Math.min(h - 1, Math.floor(((v + 0.5) * h) / height)) * w + Math.min(w - 1, Math.floor(((u + 0.5) * w) / width));
  }

  depthAt(pixel, from = this.result) {
    const log = from ? from.logDepth[this.displayed(pixel)] : NaN;
    return Number.isFinite(log) ? Math.exp(log) : null;
  }

  truthAt(pixel) {
    const log = this.logTruth ? this.logTruth[this.displayed(pixel)] : NaN;
    return Number.isFinite(log) ? Math.exp(log) : null;
  }

  /** What the readout says of a pixel, as [kind, words]. */
  describe(pixel) {
    const depth = this.depthAt(pixel), truth = this.truthAt(pixel);
    const words = [];
    if (depth) words.push(["value", formatLength(depth, this.unit)]);
    const std = depth && this.result.stdLog?.[this.displayed(pixel)];
    if (std) {
      const [near, far] = [-1, 1].map((side) => formatNumber(depth * Math.exp(side * NINETY * std), this.unit));
      words.push(["note", `${near} … ${far} ${this.unit} with 90 %`]);
    }
    if (!this.result) return [["note", "click to set its distance"]];
    if (!depth) words.push(["note", "no depth here"]);
    if (this.other) words.push(["note", `${this.compareWith} ${formatLength(this.depthAt(pixel, this.other) ?? NaN, this.unit)}`]);
    if (depth && truth) words.push(["note", `true ${formatLength(truth, this.unit)} (${formatPercent(Math.log(depth / truth))})`]);
    if (this.view === "field" && depth) words.push(["note", `× ${Math.exp(this.result.logScale[this.displayed(pixel)]).toPrecision(3)}`]);
    return words;
  }

  /** Colour and words for the i-th anchor, from the newest result that knows it. */
  aboutAnchor(i) {
    const anchor = this.anchors.items[i];
    const colour = this.result ? this.metreScale.colour(Math.log(anchor.depth_m)) : "var(--accent)";
    const at = this.result?.index.get(anchor.id);
    const about = { colour, suspect: false, unused: false, words: "" };
    if (at === undefined) return about;
    const { header } = this.result, state = header.anchors[at], others = header.others[at];
    about.others_m = others?.depth_m;
    about.suspect = header.suspects.includes(at);
    about.unused = Boolean(state.reason);
    const said = others ? `others say ${formatLength(others.depth_m, this.unit)}` : "";
    if (about.suspect) about.words = `${about.unused ? "not used: " : ""}${said} (${formatPercent(Math.log(others.depth_m / anchor.depth_m))})`;
    else if (about.unused) about.words = `not used: ${state.reason}`;
    else if (others && Math.abs(others.sigmas) > WORTH_SAYING) about.words = said;
    else about.words = `map says ${formatPercent(state.residual_log)}`;
    return about;
  }

  distanceBetween(a, b) {
    const depths = [a, b].map((p) => this.depthAt(p));
    if (this.fovDeg === null || depths.includes(null)) return "";
    const [p, q] = [a, b].map((pixel, i) => point(this.session, this.fovDeg, pixel.u, pixel.v, depths[i]));
    return formatLength(Math.hypot(p[0] - q[0], p[1] - q[1], p[2] - q[2]), this.unit);
  }

  // ---- tools ---------------------------------------------------------------------------------

  measureAt(pixel) {
    if (!this.result) return this.complain("Place an anchor first; without one there are no metres to measure.");
    if (this.fovDeg === null) {
      $("fov").focus();
      return this.complain("Measuring between two points needs the camera's field of view; give it under Camera.");
    }
    this.measured = this.measured.length === 1 ? [this.measured[0], pixel] : [pixel];
    if (this.measured.length === 2) this.say(`The two points are ${this.distanceBetween(...this.measured)} apart.`);
    this.showCaption();
    this.stage.drawOverlay();
  }

  measureClear() {
    this.measured = [];
    this.stage.drawOverlay();
  }

  profileAt(v) {
    this.profileRow = v;
    $("profile-row").value = v;
    this.stage.drawOverlay();
    this.showProfile();
  }

  setTool(tool) {
    this.tool = tool;
    for (const button of $("tools").children) {
      button.setAttribute("aria-checked", String(button.dataset.tool === tool));
      button.tabIndex = button.dataset.tool === tool ? 0 : -1;
    }
    this.measured = [];
    this.profileRow = tool === "profile" ? this.session.height >> 1 : null;
    $("profile-row").max = this.session.height - 1;
    $("profile-row").value = this.profileRow ?? 0;
    this.stage.close(false);
    if (tool !== "anchor" && ["basis", "cloud"].includes(this.view)) this.setView("depth");
    this.showProfile();
    this.showCaption();
  }

  setView(view) {
    this.view = view;
    for (const tab of $("views").children) {
      tab.setAttribute("aria-selected", String(tab.dataset.view === view));
      tab.tabIndex = tab.dataset.view === view ? 0 : -1;
      if (tab.dataset.view === view) $("stage-area").setAttribute("aria-label", tab.textContent);
    }
    this.stage.close(false);
    this.showAll();
  }

  pointed(pixel) {
    this.pointedAt = pixel;
    const mark = $("ticks").querySelector(".here");
    const log = pixel && this.barScale && this.barValues ? this.barValues[this.displayed(pixel)] : NaN;
    if (mark) {
      mark.hidden = !Number.isFinite(log);
      mark.style.left = `${100 * Math.min(1, Math.max(0, this.barScale?.position(log) ?? 0))}%`;
    }
    if (this.profileRow !== null) this.showProfile();
  }

  // ---- showing -------------------------------------------------------------------------------

  showAll() {
    if (this.result) {
      const arrays = [this.result.logDepth, ...(this.other ? [this.other.logDepth] : [])];
      this.metreScale = depthScale(this.info.colours.near_to_far, arrays);
    }
    this.showView();
    this.stage.draw();
    this.showPanel();
    this.showProfile();
  }

  showView() {
    const unsure = Boolean(this.result?.stdLog);
    document.querySelector("[data-view=doubt]").hidden = !unsure;
    if (this.view === "doubt" && !unsure) return this.setView("depth");
    const { view, session, result, other, info } = this;
    const { display_width: w, display_height: h } = session;
    const flat = !["basis", "cloud"].includes(view);
    $("stage").hidden = !flat;
    $("basis").hidden = view !== "basis";
    $("cloud-area").hidden = view !== "cloud";
    $("stage").style.aspectRatio = `${session.width} / ${session.height}`;
    $("stage").style.setProperty("--ratio", session.width / session.height);
    const empty = (view === "depth" || view === "field") && !result;
    $("stage-empty").hidden = !empty;
    $("stage-empty").textContent = "No metres yet. Click something whose distance you know.";
    $("stage").classList.toggle("empty", empty);
    const split = Boolean(other && result && (view === "depth" || view === "field"));
    $("other").hidden = $("divider").hidden = $("compare-row").hidden = !split;
    $("divider-left").textContent = this.method;
    $("divider-right").textContent = this.compareWith;
    const bar = (scale, values, label) => this.showBar(scale, values, label);
    if (view === "photo" || empty) {
      const base = $("base");
      [base.width, base.height] = [w, h];
      base.getContext("2d").drawImage(this.photo, 0, 0, w, h);
      bar(result ? this.metreScale : null, result?.logDepth, (log) => inUnit(Math.exp(log), this.unit));
    } else if (view === "depth") {
      paint($("base"), result.logDepth, this.metreScale, w, h);
      if (split) paint($("other"), other.logDepth, this.metreScale, w, h);
      bar(this.metreScale, result.logDepth, (log) => inUnit(Math.exp(log), this.unit));
    } else if (view === "doubt") {
      const share = result.stdLog.map((std) => Math.log(Math.expm1(std)));
      const scale = depthScale(info.colours.near_to_far, [share]);
      paint($("base"), share, scale, w, h);
      bar(scale, share, (log) => 100 * Math.exp(log));
    } else if (view === "field") {
      const scale = factorScale(info.colours.small_to_large, result.logScale);
      paint($("base"), result.logScale, scale, w, h);
      if (split) paint($("other"), other.logScale, scale, w, h);
      bar(scale, result.logScale, (log) => Math.exp(log - scale.middle));
    } else if (view === "mde") {
      const scale = depthScale(info.colours.near_to_far, [this.logMde]);
      paint($("base"), this.logMde, scale, w, h);
      bar(scale, this.logMde, (log) => Math.exp(log));
    } else if (view === "basis") this.showBasis();
    else this.showCloud();
    this.showSplit();
    this.showCaption();
  }

  showSplit() {
    const share = $("compare-slider").value / 10;
    $("other").style.clipPath = `inset(0 0 0 ${share}%)`;
    $("divider").style.left = `${share}%`;
  }

  showBasis() {
    const weights = this.result?.header.weights ?? null;
    const method = weights ? this.result.header.method : "basis";
    if (this.basis?.revision !== this.session.revision || this.basis.method !== method) {
      this.bases.request(method);
      return this.showBar(null);
    }
    const scale = drawBasis($("basis"), this.basis, weights, this.info.colours.small_to_large);
    this.showBar(scale, null, (log) => Math.exp(log));
  }

  showCloud() {
    this.showBar(null);
    this.cloud ??= new Cloud($("cloud"));
    const note = $("cloud-note");
    if (!this.cloud.works) return void (note.textContent = "This browser has no WebGL, so there is no point cloud here; cloud.ply has it.");
    if (!this.photoPixels) {
      const canvas = new OffscreenCanvas(this.session.display_width, this.session.display_height);
      const context = canvas.getContext("2d");
      context.drawImage(this.photo, 0, 0, canvas.width, canvas.height);
      this.photoPixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
      this.cloud.setPhoto(this.session, this.photoPixels);
    }
    this.cloud.setDepth(this.result?.logDepth ?? this.logMde, this.fovDeg ?? ASSUMED_FOV);
    const lens = this.fovDeg === null ? `Field of view assumed to be ${ASSUMED_FOV}°; give it under Camera for the true shape. ` : "";
    note.textContent = `${lens}Drag to turn, scroll or pinch to come nearer, double-click to go home.`;
  }

  /** The bar under the picture; `values` are what the pointer's mark follows. */
  showBar(scale, values = null, inverse = null) {
    this.barScale = scale;
    this.barValues = values;
    $("colour-bar").hidden = !scale;
    if (!scale) return;
    const context = $("colours").getContext("2d");
    const image = context.createImageData(256, 1);
    scale.table.forEach(([r, g, b], i) => image.data.set([r, g, b, 255], 4 * i));
    context.putImageData(image, 0, 0);
    const ends = [scale.low, scale.high].map(inverse);
    const found = ticks(...ends, innerWidth < 600 ? 5 : 8, !scale.even);
    const unit = { depth: ` ${this.unit}`, photo: ` ${this.unit}`, mde: "", doubt: " %" }[this.view] ?? "×";
    // Ticks lie where their values do: evenly in metres, or in their logarithm.
    const share = (value) => {
      const [low, high] = ends, f = scale.even ? (x) => x : Math.log;
      return (f(value) - f(low)) / (f(high) - f(low));
    };
    const marks = found.map((value) => {
      const mark = element("span", "", `${value}${unit}`);
      mark.style.left = `${100 * share(value)}%`;
      return mark;
    });
    const here = element("i", "here");
    here.hidden = true;
    $("ticks").replaceChildren(...marks, here);
  }

  showCaption() {
    const { result, session } = this;
    const [a, b] = this.measured;
    const captions = {
      photo: result ? "Point anywhere to read its distance." : "The photo as it is.",
      depth: "Recovered depth: straight ahead of the camera, not along the slant.",
      doubt: "Uncertainty: one standard deviation of the distance, as a share of it. Light is sure, dark is not.",
      field: `Scale field: metres per unit of relative depth, around its median${result ? ` of ${Math.exp(percentiles(result.logScale, [0.5])[0]).toPrecision(3)}` : ""}.`,
      mde: `Relative depth of ${session.relative_depth}: nearer and farther, in no unit.`,
      basis: result?.header.weights ? "What each learned basis map adds to the scale field: map × weight, as a factor, all on one scale." : this.anchors.items.length ? "Basis maps belong to the methods basis and field; choose one of them to see their weights." : "Learned basis maps of this photo. Anchors will give them weights.",
      cloud: "",
    };
    let words = captions[this.view];
    if (this.tool === "measure") words = b ? `${this.distanceBetween(a, b)} between the two points. Click for a new first point.` : a ? "Click the second point." : "Click two points to read the distance between them.";
    if (this.tool === "profile") words = "Click or slide to choose the row.";
    $("caption").textContent = words;
  }

  showProfile() {
    const on = this.profileRow !== null && !["basis", "cloud"].includes(this.view);
    $("profile").hidden = !on;
    $("work").classList.toggle("with-profile", on);
    if (!on) return;
    const { display_width: w, height, display_height: h } = this.session;
    const row = Math.min(h - 1, Math.floor(((this.profileRow + 0.5) * h) / height));
    const cut = (values) => values.subarray(row * w, (row + 1) * w);
    const lines = [];
    if (this.logTruth && this.result) lines.push({ kind: "truth", label: "true", values: cut(this.logTruth) });
    if (this.other) lines.push({ kind: "second", label: this.compareWith, values: cut(this.other.logDepth) });
    if (this.result) lines.push({ kind: "first", label: this.method, values: cut(this.result.logDepth) });
    $("profile-title").textContent = lines.length ? `Depth along row ${this.profileRow}` : "Place an anchor to see the profile in metres";
    const share = this.pointedAt ? (this.pointedAt.u + 0.5) / this.session.width : null;
    drawProfile($("profile-chart"), lines, this.unit, share);
  }

  showPanel() {
    const { anchors, result } = this, n = anchors.items.length;
    $("anchor-count").textContent = n;
    $("anchors-empty").hidden = n > 0;
    $("undo").disabled = !anchors.past.length;
    $("redo").disabled = !anchors.future.length;
    $("clear").disabled = !n;
    this.showNext();
    for (const button of $("downloads").children) button.disabled = !n;
    listAnchors(this);
    const about = this.info.methods.find((m) => m.name === this.method);
    $("method-about").textContent = about.about;
    const notes = result ? [...result.header.warnings.map((w) => `Careful: ${w}`), ...result.header.fallbacks] : [];
    const bad = result?.header.suspects.length ?? 0;
    if (bad && !result.header.warnings.some((w) => w.includes("contradicted"))) notes.unshift(`${bad === 1 ? "One anchor disagrees" : `${bad} anchors disagree`} with what the others say there. Measure again, or delete.`);
    if (result) notes.push(`Solved in ${result.header.milliseconds.toFixed(0)} ms.`);
    $("notes").replaceChildren(...notes.map((words) => element("li", "", words)));
  }

  showNext() {
    const shares = this.next.map(({ removes }, i) => `${i + 1} removes ${Math.round(100 * removes)} %`);
    $("next-hint").hidden = !$("next").checked;
    $("next-hint").textContent = shares.length ? `Rings mark the spots that would tell most about the rest. Of the doubt that is left: ${shares.join(", ")}.` : "No spot stands out here.";
  }

  showCamera() {
    const { fovDeg, session } = this;
    $("fov").value = fovDeg === null ? "" : fovDeg.toFixed(1);
    const sources = { EXIF: "Read from the photo's EXIF.", sample: "Known for this sample.", "": "Unknown. Phones have about 65 to 75° in landscape, 50 to 60° in portrait." };
    $("fov-hint").textContent = fovDeg === session.fov_deg ? sources[session.fov_source] : "Given by you.";
    $("depth-source").textContent = session.relative_depth + (session.kind === "disparity" ? " (disparity)" : "");
    $("licence").hidden = session.relative_depth !== this.info.estimator;
    $("licence").textContent = `Weights of ${this.info.estimator}: ${this.info.estimator_licence}.`;
  }

  // ---- saying --------------------------------------------------------------------------------

  say(words) {
    clearTimeout(this.saying);
    this.saying = setTimeout(() => ($("live").textContent = words), 250);
  }

  complain(words) {
    $("toast-text").textContent = words[0].toUpperCase() + words.slice(1);
    $("toast").hidden = false;
    clearTimeout(this.complaining);
    this.complaining = setTimeout(() => ($("toast").hidden = true), 12000);
  }

  async download(name) {
    try {
      const { anchors, method } = this.wish(this.method);
      if (name === "cloud.ply" && this.fovDeg === null) {
        $("fov").focus();
        return this.complain("The point cloud needs the camera's field of view; give it under Camera.");
      }
      const blob = name === "anchors.csv"
        ? new Blob([toCsv(this.anchors.items)], { type: "text/csv" })
        : await api.getFile(this.session.id, name, { anchors, method, fov_deg: this.fovDeg });
      const link = element("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${this.session.name.replace(/\.[^.]*$/, "")}_${name}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      this.say(`${name} is downloaded.`);
    } catch (e) {
      this.complain(e.message);
    }
  }
}

/** One screen at a time: start, working or work. */
export function show(screen) {
  document.body.dataset.screen = screen;
}
