// The picture: zoom and pan, pointer and keyboard input, and the marks over it.

import { $ } from "./dom.js";
import { fitView, nearestInside, nearestPixel, panView, thinned, toPixel, toStage, zoomView, holdView } from "./geometry.js";

const REACH = { mouse: 13, pen: 16, touch: 24 }; // screen pixels within which a press selects an anchor
const MOVED = { mouse: 4, pen: 6, touch: 9 }; // screen pixels from which a press is a drag
const MANY = 150; // number of anchors from which they are drawn as dots
const LOUPE = 58; // radius in screen pixels
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

/** The part of the page that the stage uses.
 *  @typedef {object} Host
 *  @property {any} session
 *  @property {import("./state.js").Work} work
 *  @property {string} tool
 *  @property {() => {first: any, second: any, photo: any, blend: number, share: number, sharp: boolean} | null} picture
 *  @property {(i: number) => any} aboutAnchor
 *  @property {(pixel: import("./geometry.js").Pixel | null) => void} pointed
 *  @property {(pixel: import("./geometry.js").Pixel, pointer: string) => void} pressed
 *  @property {(id: number, pointer: string) => void} anchorPressed
 *  @property {(id: number, pixel: import("./geometry.js").Pixel, done: boolean) => void} dragged
 *  @property {(id: number | null) => void} hovered
 *  @property {() => any} drawing
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
    /** @type {import("./geometry.js").Pixel | null} */
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

  get photo() {
    return this.host.session;
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
    else this.setView(holdView({ ...this.view, x: this.view.x + (width - before.width) / 2, y: this.view.y + (height - before.height) / 2 }, this.photo, this.size));
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
    const { share } = this.host.drawing();
    const x = this.view.x + share * this.photo.width * this.view.scale;
    $("divider").style.left = `${x}px`;
    this.placeCard();
  }

  placeCard() {
    const { pin } = this.host.drawing(), card = $("card");
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
    if (this.dirty.base && this.baseChanged()) this.drawBase();
    this.drawOverlay();
    this.dirty = { base: false, overlay: false };
  }

  /** Whether the picture or its place differs from what was drawn last; with an edit in the view Photo it does not. */
  baseChanged() {
    const { first, second, blend, share } = this.host.picture() ?? {}, { view, size } = this;
    const now = [first, second, blend, second ? share : 0, view.x, view.y, view.scale, size.width, size.height, devicePixelRatio];
    const changed = now.some((value, i) => value !== this.drawnBase[i]);
    this.drawnBase = now;
    return changed;
  }

  /** A canvas of the stage's size in device pixels, cleared, that draws in screen pixels.
   *  @param {HTMLCanvasElement} canvas @returns {CanvasRenderingContext2D} */
  context(canvas) {
    const ratio = Math.min(3, devicePixelRatio), width = Math.round(this.size.width * ratio), height = Math.round(this.size.height * ratio);
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.size.width, this.size.height);
    return context;
  }

  drawBase() {
    const picture = this.host.picture(), context = this.context($("base"));
    if (!picture) return;
    const { view, photo } = this, width = photo.width * view.scale, height = photo.height * view.scale;
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

  drawOverlay() {
    const context = this.context($("overlay"));
    const scene = this.host.drawing();
    const at = (/** @type {any} */ pixel) => toStage(this.view, pixel);
    if (scene.profileRow !== null) stroke(context, [{ x: this.view.x, y: at({ u: 0, v: scene.profileRow }).y }, { x: this.view.x + this.photo.width * this.view.scale, y: at({ u: 0, v: scene.profileRow }).y }]);
    scene.suggestions.forEach((/** @type {any} */ s, /** @type {number} */ i) => this.drawSuggestion(context, at(s), i + 1));
    const measurements = scene.measurements.map((/** @type {any} */ m) => ({ ...m, points: m.points.map(at) }));
    if (scene.pending?.points.length) {
      const next = this.cursor ? [...scene.pending.points, this.cursor] : scene.pending.points;
      measurements.push({ kind: scene.pending.kind, label: scene.pendingLabel(next), unsure: false, active: true, points: next.map(at) });
    }
    for (const measurement of measurements) drawMeasurement(context, measurement);
    this.drawAnchors(context, scene);
    for (const measurement of measurements) labelMeasurement(context, measurement);
    const cross = scene.pin && scene.pin.id === null ? scene.pin : this.byKeyboard || this.loupe ? this.cursor : null;
    if (cross) drawCross(context, at(cross));
    if (this.loupe && this.cursor) this.drawLoupe(context, this.cursor);
  }

  /** @param {CanvasRenderingContext2D} context @param {{x: number, y: number}} at @param {number} number */
  drawSuggestion(context, { x, y }, number) {
    circle(context, x, y, 14, "rgb(0 0 0 / 50%)");
    context.setLineDash([4, 3]);
    circle(context, x, y, 14, null, "#7ff0d4", 2.5);
    context.setLineDash([]);
    write(context, String(number), x, y, "#c9fbef", 13);
  }

  /** @param {CanvasRenderingContext2D} context @param {any} scene */
  drawAnchors(context, scene) {
    const { anchors } = this.host.work, many = anchors.length > MANY;
    const numbers = new Map(anchors.map((a, i) => [a.id, i]));
    const first = new Set([scene.pin?.id, this.hoveredAnchor, ...scene.suspects]);
    const shown = many ? thinned(this.view, anchors, 7, this.size) : anchors;
    const order = many ? [...shown, ...anchors.filter((a) => first.has(a.id))] : anchors;
    for (const anchor of order) {
      const { x, y } = toStage(this.view, anchor);
      if (x < -20 || y < -20 || x > this.size.width + 20 || y > this.size.height + 20) continue;
      const i = /** @type {number} */ (numbers.get(anchor.id)), about = this.host.aboutAnchor(i), large = !many || first.has(anchor.id);
      context.globalAlpha = about.unused && !about.suspect ? 0.55 : 1;
      const r = large ? 9.5 : 3.2;
      circle(context, x, y, r + (large ? 2.2 : 1), about.suspect ? "#c5221f" : "#17181d");
      circle(context, x, y, r + (large ? 0.8 : 0.2), "#fff");
      circle(context, x, y, r - (large ? 1.2 : 0.2), about.colour);
      if (large) write(context, String(i + 1), x, y + 0.5, about.ink, i > 98 ? 8 : 10.5);
      if (this.hoveredAnchor === anchor.id) circle(context, x, y, 15, null, "#fff", 2.5, true);
      context.globalAlpha = 1;
    }
    this.drawPlates(context, anchors, numbers, first);
  }

  /** Distances beside the anchors, where they do not overlap.
   *  @param {CanvasRenderingContext2D} context @param {any[]} anchors @param {Map<number, number>} numbers @param {Set<number>} first */
  drawPlates(context, anchors, numbers, first) {
    /** @type {number[][]} */
    const taken = [];
    const ordered = [...anchors.filter((a) => first.has(a.id)), ...(anchors.length > MANY ? [] : anchors.filter((a) => !first.has(a.id)))];
    context.font = `600 12.5px ${FONT}`;
    for (const anchor of ordered.slice(0, 200)) {
      const { x, y } = toStage(this.view, anchor), about = this.host.aboutAnchor(/** @type {number} */ (numbers.get(anchor.id)));
      const width = context.measureText(about.plate).width + 14;
      const left = x + 16 + width > this.size.width ? x - 16 - width : x + 16;
      const box = [left, y - 11, left + width, y + 11];
      if (!first.has(anchor.id) && taken.some((t) => box[0] < t[2] && box[2] > t[0] && box[1] < t[3] && box[3] > t[1])) continue;
      taken.push(box);
      context.fillStyle = about.suspect ? "#b3261e" : "rgb(255 255 255 / 93%)";
      context.beginPath();
      context.roundRect(left, y - 10.5, width, 21, 7);
      context.fill();
      write(context, about.plate, left + width / 2, y + 0.5, about.suspect ? "#fff" : "#1b1d22", 12.5);
    }
  }

  /** A magnified circle beside the finger, with the chosen pixel in its middle.
   *  @param {CanvasRenderingContext2D} context @param {import("./geometry.js").Pixel} pixel */
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
    context.drawImage(picture.photo ?? picture.first, x - (pixel.u + 0.5) * magnified, y - (pixel.v + 0.5) * magnified, this.photo.width * magnified, this.photo.height * magnified);
    context.restore();
    circle(context, x, y, LOUPE, null, "#fff", 3, true);
    drawCross(context, { x, y });
  }

  // ---- pointer -----------------------------------------------------------------------------------

  listen() {
    const { element } = this;
    const on = (/** @type {string} */ type, /** @type {any} */ what, options = {}) => element.addEventListener(type, what, options);
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
    const anchor = this.host.tool === "point" ? this.anchorAt(at, e.pointerType) : null;
    // On the screen, because the stage itself may move when the row below it changes.
    const screen = { x: e.clientX, y: e.clientY };
    this.press = { at, screen, last: at, anchor, moved: false, pan: e.button === 1 || this.host.tool === "pan" };
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
    if (this.press.anchor && !this.press.pan) {
      const pixel = toPixel(this.view, at, this.photo);
      this.loupe = true;
      if (pixel) {
        this.cursor = pixel;
        this.host.dragged(this.press.anchor.id, pixel, false);
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
    if (press.anchor && press.moved) {
      if (pixel) this.host.dragged(press.anchor.id, pixel, true);
      return;
    }
    if (e.type === "pointercancel" || press.pan || (press.moved && !loupe)) return;
    if (press.anchor) this.host.anchorPressed(press.anchor.id, e.pointerType);
    else if (pixel) this.host.pressed(this.snapped(pixel, at, e.pointerType), e.pointerType);
    if (e.pointerType === "touch") this.point(null);
  }

  /** While measuring, a point near an anchor snaps to it.
   *  @param {import("./geometry.js").Pixel} pixel @param {{x: number, y: number}} at @param {string} pointer */
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

  /** @param {import("./geometry.js").Pixel | null} pixel */
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
    const near = this.anchorAt(toStage(this.view, start), "mouse");
    if (e.key in steps) {
      const [du, dv] = steps[/** @type {keyof typeof steps} */ (e.key)];
      const far = (e.shiftKey ? 10 : 1) * (e.altKey ? 1 : Math.max(1, Math.round(1 / this.view.scale)));
      const next = nearestInside({ u: start.u + far * du, v: start.v + far * dv }, this.photo);
      this.byKeyboard = true;
      if (e.altKey && near) this.host.dragged(near.id, next, true);
      this.reveal(next);
      this.point(next);
      this.hover(this.anchorAt(toStage(this.view, next), "mouse")?.id ?? null);
      this.host.announce(this.host.describePixel(next));
    } else if (e.key === "Enter" || e.key === " ") {
      this.byKeyboard = true;
      if (near && this.host.tool === "point") this.host.anchorPressed(near.id, "keyboard");
      else this.host.pressed(this.snapped(start, toStage(this.view, start), "mouse"), "keyboard");
    } else if (e.key === "Delete" || e.key === "Backspace") {
      if (near) this.host.removeAnchor(near.id);
    } else if (e.key === "+" || e.key === "=") this.zoom(1.25, this.byKeyboard && this.cursor ? toStage(this.view, this.cursor) : undefined);
    else if (e.key === "-") this.zoom(0.8);
    else if (e.key === "0") this.fit();
    else if (e.key === "Escape") this.host.escape();
    else return;
    e.preventDefault();
  }

  /** Pan until a pixel is on the stage. @param {import("./geometry.js").Pixel} pixel */
  reveal(pixel) {
    const { x, y } = toStage(this.view, pixel), edge = 30;
    const off = (/** @type {number} */ at, /** @type {number} */ space) => (at < edge ? edge - at : at > space - edge ? space - edge - at : 0);
    const dx = off(x, this.size.width), dy = off(y, this.size.height);
    if (!this.fitted && (dx || dy)) this.pan(dx, dy);
  }
}

// ---- shapes --------------------------------------------------------------------------------------

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} r
 *  @param {string | null} fill @param {string} [line] @param {number} [width] @param {boolean} [halo] */
export function circle(context, x, y, r, fill, line = "", width = 0, halo = false) {
  context.beginPath();
  context.arc(x, y, r, 0, 7);
  if (fill) {
    context.fillStyle = fill;
    context.fill();
  }
  if (halo) {
    context.strokeStyle = "rgb(0 0 0 / 55%)";
    context.lineWidth = width + 2.5;
    context.stroke();
  }
  if (line) {
    context.strokeStyle = line;
    context.lineWidth = width;
    context.stroke();
  }
}

/** @param {CanvasRenderingContext2D} context @param {string} words @param {number} x @param {number} y @param {string} colour @param {number} size */
export function write(context, words, x, y, colour, size) {
  context.font = `600 ${size}px ${FONT}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = colour;
  context.fillText(words, x, y);
}

/** @param {CanvasRenderingContext2D} context @param {{x: number, y: number}[]} points @param {boolean} [closed] @param {boolean} [dashed] */
function stroke(context, points, closed = false, dashed = false) {
  context.beginPath();
  points.forEach(({ x, y }, i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  if (closed) context.closePath();
  context.lineJoin = "round";
  context.strokeStyle = "rgb(0 0 0 / 60%)";
  context.lineWidth = 5;
  context.stroke();
  if (dashed) context.setLineDash([6, 4]);
  context.strokeStyle = "#fff";
  context.lineWidth = 2;
  context.stroke();
  context.setLineDash([]);
}

/** @param {CanvasRenderingContext2D} context @param {{x: number, y: number}} at */
function drawCross(context, { x, y }) {
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) stroke(context, [{ x: x + 5 * dx, y: y + 5 * dy }, { x: x + 15 * dx, y: y + 15 * dy }]);
}

/** A measured line, path, area or height.
 *  @param {CanvasRenderingContext2D} context
 *  @param {{kind: string, points: {x: number, y: number}[], unsure: boolean, active?: boolean}} measurement */
export function drawMeasurement(context, { kind, points, unsure, active = false }) {
  if (kind === "area" && points.length > 2) {
    context.fillStyle = "rgb(255 255 255 / 22%)";
    context.beginPath();
    points.forEach(({ x, y }, i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.fill();
  }
  if (points.length > 1) stroke(context, points, kind === "area" && points.length > 2, active || unsure);
  for (const { x, y } of points) circle(context, x, y, 4.5, "#fff", "#17181d", 1.6);
}

/** The label of a measurement, in the middle of its line or area.
 *  @param {CanvasRenderingContext2D} context
 *  @param {{kind: string, points: {x: number, y: number}[], label: string, unsure: boolean}} measurement */
export function labelMeasurement(context, { kind, points, label, unsure }) {
  if (!label || points.length < 2) return;
  const middle = kind === "area" ? points : points.slice(Math.floor((points.length - 2) / 2), Math.floor((points.length - 2) / 2) + 2);
  const x = middle.reduce((s, p) => s + p.x, 0) / middle.length, y = middle.reduce((s, p) => s + p.y, 0) / middle.length - (kind === "area" ? 0 : 16);
  context.font = `600 13px ${FONT}`;
  const width = context.measureText(label).width + 16;
  context.fillStyle = unsure ? "rgb(84 86 94 / 92%)" : "rgb(20 22 28 / 90%)";
  context.beginPath();
  context.roundRect(x - width / 2, y - 12, width, 24, 8);
  context.fill();
  write(context, label, x, y + 0.5, unsure ? "#e2e3e8" : "#fff", 13);
}
