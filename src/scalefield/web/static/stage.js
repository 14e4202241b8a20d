// The picture: zoom and pan, pointer and keyboard input, and the marks over it.

import { $ } from "./dom.js";
import { fitView, holdView, nearestInside, nearestPixel, panView, toPixel, toStage, zoomView } from "./geometry.js";
import { circle, drawCross, drawMarks, stroke } from "./marks.js";

/** @typedef {import("./geometry.js").Pixel} Pixel */
/** @typedef {import("./state.js").Handle} Handle */

const REACH = { mouse: 13, pen: 16, touch: 24 }; // screen pixels within which a press selects an anchor
const MOVED = { mouse: 4, pen: 6, touch: 9 }; // screen pixels from which a press is a drag
const MANY = 150; // number of anchors from which they are drawn as dots, and have to be pressed more exactly
const LOUPE = 58; // radius in screen pixels

/** The part of the page that the stage uses.
 *  @typedef {object} Host
 *  @property {import("./page.js").Loaded | null} loaded
 *  @property {import("./state.js").Work} work
 *  @property {string} tool
 *  @property {() => {first: any, second: any, photo: any, blend: number, share: number, sharp: boolean} | null} picture
 *  @property {(pixel: Pixel | null) => void} pointed
 *  @property {(pixel: Pixel, pointer: string) => void} pressed
 *  @property {(id: number, pointer: string) => void} anchorPressed
 *  @property {(handle: Handle, pixel: Pixel, done: boolean) => void} dragged
 *  @property {(id: number) => void} removeMeasurement
 *  @property {import("./tools.js").Tools} tools
 *  @property {(id: number | null) => void} hovered
 *  @property {(cursor: Pixel | null) => {share: number, pin: import("./card.js").Pin | null, profileRow: number | null,
 *    scene: import("./marks.js").Scene}} drawing
 *  @property {(id: number) => void} removeAnchor
 *  @property {(words: string) => void} announce
 *  @property {() => void} escape
 *  @property {() => void} finish
 *  @property {(pixel: any) => string} describePixel
 */

export class Stage {
  /** @param {Host} host */
  constructor(host) {
    this.host = host;
    this.element = $("stage");
    this.size = { width: 0, height: 0 };
    /** @type {import("./geometry.js").View} */
    this.view = { scale: 1, x: 0, y: 0 };
    this.fitted = true;
    /** @type {Pixel | null} */
    this.cursor = null;
    this.byKeyboard = false;
    this.loupe = false;
    /** @type {number | null} */
    this.hoveredAnchor = null;
    this.dirty = { base: true, overlay: true };
    this.frame = 0;
    /** @type {any[]} */
    this.drawnBase = [];
    /** @type {Map<number, {x: number, y: number}>} */
    this.pointers = new Map();
    /** @type {any} */
    this.press = null;
    this.listen();
    new ResizeObserver(([entry]) => this.resize(entry.contentRect)).observe(this.element);
  }

  /** The photo's session; undefined before there is one, which drawing and input check first. */
  get photo() {
    return /** @type {import("./server.js").Session} */ (this.host.loaded?.session);
  }

  /** Show the whole photo. */
  fit() {
    this.fitted = true;
    if (this.photo) this.setView(fitView(this.photo, this.size));
  }

  /** @param {import("./geometry.js").View} view */
  setView(view) {
    this.view = view;
    $("zoom-level").textContent = this.fitted ? "Fit" : `${Math.round(100 * view.scale * devicePixelRatio)} %`;
    this.element.classList.toggle("zoomed", !this.fitted);
    this.redraw(true);
    this.place();
  }

  /** @param {{width: number, height: number}} box */
  resize({ width, height }) {
    if (!width || !height) return;
    const before = this.size;
    this.size = { width, height };
    if (!this.photo) return;
    if (this.fitted || !before.width) this.setView(fitView(this.photo, this.size));
    else
      this.setView(
        holdView(
          { ...this.view, x: this.view.x + (width - before.width) / 2, y: this.view.y + (height - before.height) / 2 },
          this.photo, this.size,
        ),
      );
  }

  /** @param {number} factor @param {{x: number, y: number}} [at] */
  zoom(factor, at = { x: this.size.width / 2, y: this.size.height / 2 }) {
    if (!this.photo) return;
    const view = zoomView(this.view, factor, at, this.photo, this.size);
    this.fitted = view.scale <= fitView(this.photo, this.size).scale * 1.001;
    this.setView(view);
  }

  /** @param {number} dx @param {number} dy */
  pan(dx, dy) {
    this.setView(panView(this.view, dx, dy, this.photo, this.size));
  }

  /** Place the divider, the readout and the card. */
  place() {
    const x = this.view.x + this.host.tools.share * this.photo.width * this.view.scale;
    $("divider").style.left = `${x}px`;
    this.placeCard();
  }

  placeCard() {
    const { pin } = this.host.drawing(null), card = $("card");
    if (!pin || card.hidden) return;
    const { x, y } = toStage(this.view, pin), { width, height } = this.size;
    card.classList.toggle("left", x > width / 2);
    card.classList.toggle("above", y > height / 2);
    card.style.left = `${Math.min(Math.max(x, 0), width)}px`;
    card.style.top = `${Math.min(Math.max(y, 0), height)}px`;
  }

  /** Draw at the next frame. @param {boolean} [base] the picture too, not only what is over it */
  redraw(base = false) {
    this.dirty.base ||= base;
    this.dirty.overlay = true;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    if (!this.photo || !this.size.width) return;
    if (this.dirty.base && this.baseChanged()) this.drawBase(this.context($("base")), this.view);
    this.drawOverlay(this.context($("overlay")), this.view, this.size);
    this.dirty = { base: false, overlay: false };
  }

  /** Whether the picture or its place differs from what was drawn last; with an edit in the view Photo it does not. */
  baseChanged() {
    const { first, second, blend, share } = this.host.picture() ?? {},
      { view, size } = this;
    const now = [
      first, second, blend, second ? share : 0, view.x, view.y, view.scale, size.width, size.height,
      devicePixelRatio,
    ];
    const changed = now.some((value, i) => value !== this.drawnBase[i]);
    this.drawnBase = now;
    return changed;
  }

  /** A canvas of the stage's size in device pixels, cleared, that draws in screen pixels.
   *  @param {HTMLCanvasElement} canvas @returns {CanvasRenderingContext2D} */
  context(canvas) {
    const ratio = Math.min(3, devicePixelRatio),
      width = Math.round(this.size.width * ratio),
      height = Math.round(this.size.height * ratio);
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.size.width, this.size.height);
    return context;
  }

  /** The picture itself. @param {import("./marks.js").Context} context @param {import("./geometry.js").View} view */
  drawBase(context, view) {
    const picture = this.host.picture(), { photo } = this;
    if (!picture) return;
    const width = photo.width * view.scale, height = photo.height * view.scale;
    context.imageSmoothingQuality = "high";
    context.imageSmoothingEnabled = view.scale < 6 || !picture.sharp;
    context.drawImage(picture.first, view.x, view.y, width, height);
    if (picture.second) {
      context.save();
      context.beginPath();
      context.rect(view.x + width * picture.share, view.y, width, height);
      context.clip();
      context.drawImage(picture.second, view.x, view.y, width, height);
      context.restore();
    }
    if (picture.blend > 0 && picture.photo) {
      context.globalAlpha = picture.blend;
      context.drawImage(picture.photo, view.x, view.y, width, height);
      context.globalAlpha = 1;
    }
  }

  /** Marks over the picture. @param {import("./marks.js").Context} context @param {import("./geometry.js").View} view
   *  @param {import("./geometry.js").Size} size @param {boolean} [exported] without what follows the pointer */
  drawOverlay(context, view, size, exported = false) {
    const { pin, profileRow, scene } = this.host.drawing(exported ? null : this.cursor);
    const at = (/** @type {Pixel} */ pixel) => toStage(view, pixel);
    if (profileRow !== null) {
      const { y } = at({ u: 0, v: profileRow });
      stroke(context, [{ x: view.x, y }, { x: view.x + this.photo.width * view.scale, y }]);
    }
    drawMarks(context, { ...scene, hovered: exported ? null : this.hoveredAnchor }, at, size);
    if (exported) return;
    const cross = pin && pin.id === null ? pin : this.byKeyboard || this.loupe ? this.cursor : null;
    if (cross) drawCross(context, at(cross));
    if (this.loupe && this.cursor) this.drawLoupe(context, this.cursor);
  }

  /** A magnified circle beside the finger, with the chosen pixel in its middle.
   *  @param {import("./marks.js").Context} context @param {Pixel} pixel */
  drawLoupe(context, pixel) {
    const picture = this.host.picture();
    if (!picture) return;
    const at = toStage(this.view, pixel), magnified = Math.max(this.view.scale * 3, 2);
    const x = Math.min(Math.max(at.x, LOUPE + 6), this.size.width - LOUPE - 6);
    const y = at.y > 2 * LOUPE + 40 ? at.y - LOUPE - 40 : at.y + LOUPE + 46;
    context.save();
    circle(context, x, y, LOUPE, "#111");
    context.beginPath();
    context.arc(x, y, LOUPE, 0, 7);
    context.clip();
    context.imageSmoothingEnabled = magnified < 8;
    context.drawImage(
      picture.photo ?? picture.first, x - (pixel.u + 0.5) * magnified, y - (pixel.v + 0.5) * magnified,
      this.photo.width * magnified, this.photo.height * magnified,
    );
    context.restore();
    circle(context, x, y, LOUPE, null, "#fff", 3, true);
    drawCross(context, { x, y });
  }

  // ---- pointer -----------------------------------------------------------------------------------

  listen() {
    const { element } = this;
    const on = (/** @type {string} */ type, /** @type {any} */ what, options = {}) =>
      element.addEventListener(type, what, options);
    on("pointerdown", (/** @type {PointerEvent} */ e) => this.down(e));
    on("pointermove", (/** @type {PointerEvent} */ e) => this.move(e));
    on("pointerup", (/** @type {PointerEvent} */ e) => this.up(e));
    on("pointercancel", (/** @type {PointerEvent} */ e) => this.up(e));
    on("pointerleave", () => {
      if (!this.press && !this.byKeyboard) this.point(null);
    });
    on("wheel", (/** @type {WheelEvent} */ e) => {
      if (!this.photo || /** @type {Element} */ (e.target).closest("#card")) return;
      e.preventDefault();
      this.zoom(Math.exp(-e.deltaY / (e.ctrlKey ? 120 : 420)), this.position(e));
    }, { passive: false });
    on("dblclick", () => this.host.finish());
    on("keydown", (/** @type {KeyboardEvent} */ e) => this.key(e));
    on("contextmenu", (/** @type {Event} */ e) => this.pointers.size && e.preventDefault());
  }

  /** @param {MouseEvent} event */
  position(event) {
    const box = this.element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  /** The anchor under a point of the stage. @param {{x: number, y: number}} at @param {string} pointer */
  anchorAt(at, pointer) {
    const { anchors } = this.host.work;
    const reach = anchors.length > MANY ? 8 : REACH[/** @type {keyof typeof REACH} */ (pointer)] ?? 13;
    const i = nearestPixel(this.view, anchors, at, reach);
    return i < 0 ? null : anchors[i];
  }

  /** What can be dragged there: an anchor, or a point of a measurement while measuring.
   *  @param {{x: number, y: number}} at @param {string} pointer @returns {Handle | null} */
  handleAt(at, pointer) {
    const { tool, tools, work } = this.host;
    if (tool !== "measure") {
      const anchor = tool === "point" ? this.anchorAt(at, pointer) : null;
      return anchor && { id: anchor.id, point: null };
    }
    const handles = tools.pending
      ? []
      : work.measurements.flatMap(({ id, points }) => points.map((p, point) => ({ ...p, id, point })));
    return (
      handles[nearestPixel(this.view, handles, at, REACH[/** @type {keyof typeof REACH} */ (pointer)] ?? 13)] ?? null
    );
  }

  /** @param {PointerEvent} e */
  down(e) {
    if (!this.photo || /** @type {Element} */ (e.target).closest("#card, #divider, button")) return;
    if (e.pointerType === "mouse" && e.button > 1) return;
    this.element.setPointerCapture(e.pointerId);
    this.element.focus({ preventScroll: true });
    const at = this.position(e);
    this.pointers.set(e.pointerId, at);
    this.byKeyboard = false;
    if (this.pointers.size === 2) {
      this.press = { pinch: true };
      this.loupe = false;
      this.point(null);
      return;
    }
    if (this.pointers.size > 2) return;
    const handle = this.handleAt(at, e.pointerType);
    // On the screen, because the stage itself may move when the row below it changes.
    const screen = { x: e.clientX, y: e.clientY };
    this.press = { at, screen, last: at, handle, moved: false, pan: e.button === 1 };
    if (e.pointerType === "touch") {
      this.loupe = true;
      this.point(toPixel(this.view, at, this.photo));
    }
  }

  /** @param {PointerEvent} e */
  move(e) {
    if (!this.photo) return;
    const at = this.position(e);
    if (!this.press) {
      if (/** @type {Element} */ (e.target).closest("#card, #divider")) return this.point(null);
      this.byKeyboard = false;
      this.hover(this.anchorAt(at, e.pointerType)?.id ?? null);
      this.element.classList.toggle("grab", this.handleAt(at, e.pointerType) !== null);
      return this.point(toPixel(this.view, at, this.photo));
    }
    const before = this.pointers.get(e.pointerId);
    if (!before) return;
    if (this.press.pinch) {
      const [a, b] = [...this.pointers.values()];
      this.pointers.set(e.pointerId, at);
      const [c, d] = [...this.pointers.values()];
      const spread = (/** @type {any} */ p, /** @type {any} */ q) => Math.max(10, Math.hypot(p.x - q.x, p.y - q.y));
      const middle = { x: (c.x + d.x) / 2, y: (c.y + d.y) / 2 };
      this.zoom(spread(c, d) / spread(a, b), middle);
      this.pan(middle.x - (a.x + b.x) / 2, middle.y - (a.y + b.y) / 2);
      return;
    }
    this.pointers.set(e.pointerId, at);
    const far = Math.hypot(e.clientX - this.press.screen.x, e.clientY - this.press.screen.y);
    if (!this.press.moved && far < (MOVED[/** @type {keyof typeof MOVED} */ (e.pointerType)] ?? 4)) return;
    this.press.moved = true;
    if (this.press.handle && !this.press.pan) {
      const pixel = toPixel(this.view, at, this.photo);
      this.loupe = true;
      if (pixel) {
        this.cursor = pixel;
        this.host.dragged(this.press.handle, this.snapped(pixel, at, e.pointerType), false);
      }
    } else if (e.pointerType === "touch") this.point(toPixel(this.view, at, this.photo));
    else {
      this.pan(at.x - this.press.last.x, at.y - this.press.last.y);
      this.press.last = at;
      this.point(null);
    }
  }

  /** @param {PointerEvent} e */
  up(e) {
    const { press } = this;
    this.pointers.delete(e.pointerId);
    if (!press || (press.pinch && this.pointers.size)) return;
    this.press = null;
    const loupe = this.loupe;
    this.loupe = false;
    this.redraw();
    if (press.pinch) return;
    const at = this.position(e), pixel = toPixel(this.view, at, this.photo);
    if (press.handle && press.moved) {
      if (pixel) this.host.dragged(press.handle, this.snapped(pixel, at, e.pointerType), true);
      return;
    }
    if (e.type === "pointercancel" || press.pan || (press.moved && !loupe)) return;
    if (press.handle?.point === null) this.host.anchorPressed(press.handle.id, e.pointerType);
    else if (pixel) this.host.pressed(this.snapped(pixel, at, e.pointerType), e.pointerType);
    if (e.pointerType === "touch") this.point(null);
  }

  /** While measuring, a point near an anchor snaps to it.
   *  @param {Pixel} pixel @param {{x: number, y: number}} at @param {string} pointer */
  snapped(pixel, at, pointer) {
    const anchor = this.host.tool === "measure" ? this.anchorAt(at, pointer) : null;
    return anchor ? { u: Math.round(anchor.u), v: Math.round(anchor.v) } : pixel;
  }

  /** @param {number | null} id */
  hover(id) {
    if (this.hoveredAnchor === id) return;
    this.hoveredAnchor = id;
    this.host.hovered(id);
    this.redraw();
  }

  /** @param {Pixel | null} pixel */
  point(pixel) {
    this.cursor = pixel;
    this.host.pointed(pixel);
    this.redraw();
  }

  // ---- keyboard ----------------------------------------------------------------------------------

  /** @param {KeyboardEvent} e */
  key(e) {
    if (!this.photo || e.target !== this.element || e.ctrlKey || e.metaKey) return;
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const start = this.cursor ?? { u: this.photo.width >> 1, v: this.photo.height >> 1 };
    const near = this.handleAt(toStage(this.view, start), "mouse"), { tools } = this.host;
    if (e.key in steps) {
      const [du, dv] = steps[/** @type {keyof typeof steps} */ (e.key)];
      const far = (e.shiftKey ? 10 : 1) * (e.altKey ? 1 : Math.max(1, Math.round(1 / this.view.scale)));
      const next = nearestInside({ u: start.u + far * du, v: start.v + far * dv }, this.photo);
      this.byKeyboard = true;
      if (e.altKey && near) this.host.dragged(near, next, true);
      this.reveal(next);
      this.point(next);
      this.hover(this.anchorAt(toStage(this.view, next), "mouse")?.id ?? null);
      this.host.announce(this.host.describePixel(next));
    } else if (e.key === "Enter" && tools.enough && (!this.byKeyboard || tools.endsAt(start))) this.host.finish();
    else if (e.key === "Enter" || e.key === " ") {
      this.byKeyboard = true;
      if (near?.point === null) this.host.anchorPressed(near.id, "keyboard");
      else this.host.pressed(this.snapped(start, toStage(this.view, start), "mouse"), "keyboard");
    } else if (e.key === "Delete" || e.key === "Backspace") {
      if (near?.point === null) this.host.removeAnchor(near.id);
      else if (near) this.host.removeMeasurement(near.id);
    } else if (e.key === "+" || e.key === "=")
      this.zoom(1.25, this.byKeyboard && this.cursor ? toStage(this.view, this.cursor) : undefined);
    else if (e.key === "-") this.zoom(0.8);
    else if (e.key === "0") this.fit();
    else if (e.key === "Escape") this.host.escape();
    else return;
    e.preventDefault();
  }

  /** Pan until a pixel is on the stage. @param {Pixel} pixel */
  reveal(pixel) {
    const { x, y } = toStage(this.view, pixel),
      edge = 30;
    const off = (/** @type {number} */ at, /** @type {number} */ space) =>
      at < edge ? edge - at : at > space - edge ? space - edge - at : 0;
    const dx = off(x, this.size.width),
      dy = off(y, this.size.height);
    if (!this.fitted && (dx || dy)) this.pan(dx, dy);
  }
}
