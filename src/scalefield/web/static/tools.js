// Tools: points, measurements and profiles; and the choice of the view.

import { $, choose, setText } from "./dom.js";
import { showCamera } from "./panel.js";
import { LEAST_POINTS } from "./measuring.js";
import { measured } from "./readings.js";
import { PLANES, addMeasurement, givenOf } from "./state.js";
import { VIEWS } from "./views.js";

/** @typedef {import("./geometry.js").Pixel} Pixel */

const PROFILE_PIXELS = 160; // of the interval along a profile

export class Tools {
  /** @param {import("./page.js").Page} page */
  constructor(page) {
    this.page = page;
    this.tool = "point";
    this.measureKind = /** @type {import("./state.js").MeasureKind} */ ("distance");
    /** @type {{kind: import("./state.js").MeasureKind, points: Pixel[]} | null} */
    this.pending = null;
    /** @type {number | null} */
    this.profileRow = null;
    this.share = 0.5;
    this.inspected = "mde";
  }

  /** @param {Pixel} pixel */
  measureAt(pixel) {
    if (!this.page.fov) return this.askFov(() => this.measureAt(pixel));
    const kind = this.measureKind;
    if (this.endsAt(pixel)) return; // the second click of a double click
    this.pending = { kind, points: [...(this.pending?.points ?? []), pixel] };
    const most = PLANES.has(kind) ? 3 : kind === "distance" || kind === "height" ? 2 : Infinity;
    if (this.pending.points.length === most) return this.finish();
    this.changed();
  }

  /** Whether the unfinished measurement has points enough. */
  get enough() {
    return this.pending !== null && this.pending.points.length >= LEAST_POINTS[this.pending.kind];
  }

  /** Whether the unfinished measurement ends at a pixel. @param {Pixel} pixel */
  endsAt({ u, v }) {
    const last = this.pending?.points.at(-1);
    return last?.u === u && last.v === v;
  }

  /** Add the unfinished measurement to the list. */
  finish() {
    const { pending } = this;
    if (!pending || !this.enough) return;
    this.pending = null;
    this.page.commit(addMeasurement(this.page.work, pending.kind, pending.points));
    this.changed();
    if (PLANES.has(pending.kind)) return this.page.announce("These points now lie on one plane.");
    if (!this.page.shown.result)
      return this.page.showError("Type its length in the list, or set a distance: then there are metres.");
    this.page.measuring.update().then(() => {
      const found = measured(pending, this.page.measuring.estimate(pending), this.page.unit);
      this.page.announce(`${pending.kind}: ${found.value}, ${found.range}`);
    });
  }

  /** @param {() => void} [then] what to do once it is known */
  askFov(then = () => {}) {
    const dialog = $("fov-dialog");
    $("fov-value").value = "";
    setText($("fov-error"), "");
    dialog.returnValue = "cancel";
    dialog.showModal();
    dialog.addEventListener("close", () => this.page.fov && then(), { once: true });
  }

  /** @param {string} text @param {"given" | "assumed"} source whether the field of view could be taken */
  takeFov(text, source) {
    const words = text.trim().replace("°", "").replace(",", ".");
    const deg = Number(words);
    const wrong = words && !(deg >= 1 && deg <= 170);
    if (wrong) return `A field of view is 1 to 170 degrees, found “${text.slice(0, 20)}”.`;
    const same = this.page.fov && words === String(Number(this.page.fov.deg.toFixed(2)));
    if (!same) this.page.change({ fov: words ? { deg, source } : null });
    this.page.clearToast();
    showCamera(this.page);
    if (givenOf(this.page.work).length || this.page.work.anchors.some((a) => a.slant)) this.page.edited();
    this.page.views.showAll();
    return "";
  }

  /** Pixels of the photo along the profile; none without one. @returns {Pixel[]} */
  profilePixels() {
    const v = this.profileRow,
      { width } = this.page.session,
      count = Math.min(width, PROFILE_PIXELS);
    return v === null
      ? []
      : Array.from({ length: count }, (_, i) => ({ u: Math.floor(((i + 0.5) * width) / count), v }));
  }

  /** @param {number} v */
  profileAt(v) {
    this.profileRow = v;
    this.page.measuring.update();
    $("profile-row").value = v;
    this.page.stage.redraw();
    this.page.views.showProfile();
  }

  /** @param {string} tool */
  setTool(tool) {
    this.tool = tool;
    choose("tools", "tool", tool);
    this.pending = null;
    this.profileRow = tool === "profile" ? this.page.session.height >> 1 : null;
    $("profile-row").max = this.page.session.height - 1;
    $("profile-row").value = this.profileRow ?? 0;
    this.page.card.close(false);
    if (!works(tool, this.page.view)) return this.setView("depth");
    this.page.measuring.update();
    this.page.views.showProfile();
    this.changed();
  }

  /** @param {import("./state.js").MeasureKind} kind */
  setMeasureKind(kind) {
    this.measureKind = kind;
    this.pending = null;
    choose("measure-kinds", "kind", kind);
    this.changed();
  }

  /** @param {string} view */
  setView(view) {
    if (view === "inspect") view = this.inspected;
    const { tab } = VIEWS[view];
    if (tab === "inspect") this.inspected = view;
    if (view !== this.page.view) this.page.change({ view });
    for (const button of $("views").children) {
      button.setAttribute("aria-selected", String(button.dataset.view === tab));
      button.tabIndex = button.dataset.view === tab ? 0 : -1;
    }
    choose("inspect-options", "inspect", view);
    $("stage-area").setAttribute("aria-labelledby", `tab-${tab}`);
    this.page.card.close(false);
    if (!works(this.tool, view)) this.setTool("point");
    for (const button of $("tools").children) button.disabled = !works(button.dataset.tool, view);
    this.page.views.showAll();
  }

  /** @param {number} share */
  setShare(share) {
    this.share = Math.min(1, Math.max(0, share));
    $("divider").setAttribute("aria-valuenow", String(Math.round(100 * this.share)));
    this.page.stage.place();
    this.page.stage.redraw(true);
  }

  escape() {
    this.pending = null;
    this.changed();
  }

  /** Show the state of the tools. */
  changed() {
    this.page.views.showOptions();
    this.page.views.showCaption();
    this.page.stage.redraw();
    this.page.views.cloud?.redraw();
  }
}

/** Whether a tool has an effect in a view. @param {string} tool @param {string} view */
const works = (tool, view) => tool === "point" || (tool === "profile" ? VIEWS[view].flat : view !== "basis");
