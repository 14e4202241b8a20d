// The picture one clicks on: pointer, keyboard, markers, the question for a distance.

import { formatLength, formatNumber, parseLength } from "./units.js";

const MOST_LISTED = 200; // nobody reads more, and the browser would be slow
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

export class Stage {
  /** `page` has the anchors and what is known of them; see app.js. */
  constructor(page) {
    this.page = page;
    this.element = $("stage");
    this.cursor = null; // pixel under the pointer or the keyboard's cursor
    this.asked = null; // {u, v, id?} that the question is about
    this.element.addEventListener("pointermove", (e) => this.hover(e));
    this.element.addEventListener("pointerleave", () => this.leave());
    this.element.addEventListener("click", (e) => this.click(e));
    this.element.addEventListener("keydown", (e) => this.key(e));
    $("ask").addEventListener("submit", (e) => this.answer(e));
    $("ask").addEventListener("click", (e) => e.stopPropagation());
    $("ask").addEventListener("keydown", (e) => {
      e.stopPropagation();
      if (e.key === "Escape") this.close(true);
    });
    $("ask-delete").addEventListener("click", () => {
      this.page.anchors.remove(this.asked.id);
      this.close(true);
    });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  get session() {
    return this.page.session;
  }

  /** The pixel of the photo under a pointer event; null outside. */
  pixel(event) {
    const box = $("base").getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
    if (!(x >= 0 && x < 1 && y >= 0 && y < 1)) return null;
    return { u: Math.floor(x * this.session.width), v: Math.floor(y * this.session.height) };
  }

  /** Where a pixel's centre lies, in per cent of the picture. */
  place(u, v) {
    return [(100 * (u + 0.5)) / this.session.width, (100 * (v + 0.5)) / this.session.height];
  }

  hover(event) {
    if (this.dragging || !this.session) return;
    const pixel = event.target.closest("#ask") ? null : this.pixel(event);
    this.element.classList.remove("by-keyboard");
    this.point(pixel);
  }

  leave() {
    if (!this.element.classList.contains("by-keyboard")) this.point(null);
  }

  point(pixel) {
    this.cursor = pixel;
    this.page.pointed(pixel);
    this.showReadout();
    this.drawOverlay();
  }

  showReadout() {
    const readout = $("readout");
    const text = this.cursor && !this.asked ? this.page.describe(this.cursor) : null;
    readout.hidden = !text;
    if (!text) return;
    readout.replaceChildren(...text.map(([kind, words]) => element("span", kind, words)));
    // Beside the pointer, below it; on the other side where there is no room, and never outside.
    const [x, y] = this.place(this.cursor.u, this.cursor.v);
    const fit = (at, size, room) => Math.max(0, Math.min(at + 16 + size > room ? at - 16 - size : at + 16, room - size));
    const { clientWidth, clientHeight } = this.element;
    readout.style.left = `${fit((x / 100) * clientWidth, readout.offsetWidth, clientWidth)}px`;
    readout.style.top = `${fit((y / 100) * clientHeight, readout.offsetHeight, clientHeight)}px`;
  }

  click(event) {
    if (event.target.closest(".marker")) return;
    if (this.asked) {
      this.close(false);
      return;
    }
    // A click tells whole pixels of the screen; the pointer was more exact, and its pixel is the
    // one that the readout spoke of.
    const exact = event.pointerType === "mouse" && !this.element.classList.contains("by-keyboard");
    const pixel = (exact && this.cursor) || this.pixel(event);
    if (pixel) this.act(pixel);
  }

  act(pixel) {
    if (this.page.tool === "measure") this.page.measureAt(pixel);
    else if (this.page.tool === "profile") this.page.profileAt(pixel.v);
    else this.ask(pixel);
  }

  key(event) {
    if (!this.session || event.target !== this.element) return;
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const start = this.cursor ?? { u: this.session.width >> 1, v: this.session.height >> 1 };
    if (event.key in steps) {
      const far = (event.shiftKey ? 10 : 1) * Math.max(1, Math.round(this.session.width / 400));
      const [du, dv] = steps[event.key];
      this.element.classList.add("by-keyboard");
      this.point(this.inside(start.u + far * du, start.v + far * dv));
      this.page.say((this.page.describe(this.cursor) ?? []).map(([, words]) => words).join(", "));
    } else if (event.key === "Enter" || event.key === " ") {
      this.element.classList.add("by-keyboard");
      this.act(start);
    } else if (event.key === "Escape") {
      this.page.measureClear();
    } else return;
    event.preventDefault();
  }

  inside(u, v) {
    const clamp = (value, most) => Math.min(most - 1, Math.max(0, Math.round(value)));
    return { u: clamp(u, this.session.width), v: clamp(v, this.session.height) };
  }

  /** Ask for the distance of a new anchor, or of the one with that id. */
  ask(pixel, id = null) {
    this.asked = { ...pixel, id };
    const { unit } = this.page;
    const anchor = id === null ? null : this.page.anchors.get(id);
    const input = $("ask-value");
    $("ask-unit").textContent = unit;
    $("ask-delete").hidden = !anchor;
    const truth = this.page.truthAt(pixel);
    input.value = anchor ? formatNumber(anchor.depth_m, unit) : truth ? formatNumber(truth, unit) : "";
    this.hint(truth && !anchor ? "Measured for you in this sample." : "Straight ahead, from the camera.");
    const [x, y] = this.place(pixel.u, pixel.v);
    $("ask").hidden = false;
    put($("ask"), x, y);
    $("ask").classList.toggle("left", x > 50);
    $("ask").classList.toggle("above", y > 55);
    this.showReadout();
    this.drawOverlay();
    input.focus({ preventScroll: true });
    input.select();
  }

  hint(words, bad = false) {
    $("ask-hint").textContent = words;
    $("ask-hint").classList.toggle("error", bad);
    $("ask-value").setAttribute("aria-invalid", String(bad));
  }

  answer(event) {
    event.preventDefault();
    const metres = parseLength($("ask-value").value, this.page.unit);
    if (metres === null) {
      this.hint("A number above zero, such as 2.4 or 2.4 m or 8 ft.", true);
      return;
    }
    const { u, v, id } = this.asked;
    if (id === null) this.page.anchors.add(u, v, metres);
    else this.page.anchors.change(id, { depth_m: metres });
    this.page.say(`Anchor set to ${formatLength(metres, this.page.unit)}.`);
    this.close(true);
  }

  close(refocus) {
    this.asked = null;
    $("ask").hidden = true;
    if (refocus) this.element.focus({ preventScroll: true });
    this.drawOverlay();
  }

  draw() {
    if (!this.session) return;
    this.drawMarkers();
    this.drawOverlay();
    this.showReadout();
  }

  drawMarkers() {
    const { anchors, unit } = this.page;
    const known = new Map([...$("markers").children].map((m) => [Number(m.dataset.id), m]));
    for (const [i, anchor] of anchors.items.entries()) {
      const marker = known.get(anchor.id) ?? this.makeMarker(anchor.id);
      known.delete(anchor.id);
      const about = this.page.aboutAnchor(i);
      marker.style.setProperty("--depth", about.colour);
      marker.classList.toggle("suspect", about.suspect);
      marker.classList.toggle("unused", about.unused);
      const [x, y] = this.place(anchor.u, anchor.v);
      put(marker, x, y);
      marker.classList.toggle("left", (1 - x / 100) * this.element.clientWidth < (about.suspect ? 210 : 100));
      marker.firstElementChild.textContent = formatLength(anchor.depth_m, unit) + (about.suspect ? ` · others say ${formatNumber(about.others_m, unit)}` : "");
      marker.setAttribute("aria-label", `Anchor ${i + 1}, ${formatLength(anchor.depth_m, unit)}, at ${anchor.u} right, ${anchor.v} down. ${about.words} Arrow keys move it, Enter edits, Delete removes.`);
    }
    for (const gone of known.values()) gone.remove();
    $("markers").classList.toggle("many", anchors.items.length > 16);
  }

  makeMarker(id) {
    const marker = element("button", "marker");
    marker.dataset.id = id;
    marker.append(element("span", "plate"));
    marker.addEventListener("pointerdown", (e) => this.startDrag(e, id, marker));
    marker.addEventListener("keydown", (e) => this.markerKey(e, id));
    $("markers").append(marker);
    return marker;
  }

  startDrag(event, id, marker) {
    if (event.button !== 0) return;
    marker.setPointerCapture(event.pointerId);
    let moved = false;
    this.dragging = true;
    const start = [event.clientX, event.clientY];
    const move = (e) => {
      if (!moved && Math.hypot(e.clientX - start[0], e.clientY - start[1]) < 4) return;
      if (!moved) this.page.anchors.remember();
      moved = true;
      const pixel = this.pixel(e);
      if (pixel) this.page.anchors.move(id, pixel.u, pixel.v);
    };
    const end = (e) => {
      marker.removeEventListener("pointermove", move);
      marker.removeEventListener("pointerup", end);
      marker.removeEventListener("pointercancel", end);
      this.dragging = false;
      if (!moved && e.type === "pointerup") this.ask(this.page.anchors.get(id), id);
    };
    marker.addEventListener("pointermove", move);
    marker.addEventListener("pointerup", end);
    marker.addEventListener("pointercancel", end);
  }

  markerKey(event, id) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const anchor = this.page.anchors.get(id);
    if (event.key in steps) {
      const far = event.shiftKey ? 10 : 1, [du, dv] = steps[event.key];
      this.page.anchors.change(id, this.inside(anchor.u + far * du, anchor.v + far * dv));
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.page.anchors.remove(id);
      this.element.focus({ preventScroll: true });
      this.page.say("Anchor removed.");
    } else if (event.key === "Enter" || event.key === " ") this.ask(anchor, id);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Cursor, suggestions, measured line and profile line. */
  drawOverlay() {
    const overlay = $("overlay");
    overlay.replaceChildren();
    if (!this.session) return;
    const at = (u, v) => this.place(u, v).map((p) => `${p}%`);
    const add = (name, attributes, words) => {
      const shape = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
      if (words) shape.textContent = words;
      overlay.append(shape);
    };
    const ring = (u, v, r, kind) => {
      const [cx, cy] = at(u, v);
      add("circle", { cx, cy, r, class: kind });
    };
    if (this.page.profileRow !== null) {
      const [, y] = at(0, this.page.profileRow);
      add("line", { x1: 0, x2: "100%", y1: y, y2: y, class: "halo" });
      add("line", { x1: 0, x2: "100%", y1: y, y2: y, class: "profile-line" });
    }
    for (const [i, { u, v }] of this.page.next.entries()) {
      const [x, y] = at(u, v);
      ring(u, v, 13, "halo");
      ring(u, v, 13, "suggestion");
      add("text", { x, y, class: "suggestion-number" }, String(i + 1));
    }
    const [a, b] = this.page.measured;
    if (a && (b || this.cursor)) {
      const end = b ?? this.cursor;
      const [x1, y1] = at(a.u, a.v), [x2, y2] = at(end.u, end.v);
      add("line", { x1, y1, x2, y2, class: "halo" });
      add("line", { x1, y1, x2, y2, class: "measure-line" });
      const words = this.page.distanceBetween(a, end);
      if (words) add("text", { x: `${(parseFloat(x1) + parseFloat(x2)) / 2}%`, y: `${(parseFloat(y1) + parseFloat(y2)) / 2}%`, dy: -10, class: "measure-words" }, words);
    }
    for (const end of [a, b]) if (end) ring(end.u, end.v, 5, "measure-end");
    const cross = this.asked?.id === null ? this.asked : this.element.classList.contains("by-keyboard") ? this.cursor : null;
    if (cross) {
      ring(cross.u, cross.v, 8, "halo");
      ring(cross.u, cross.v, 8, "cursor");
    }
  }
}

/** The list beside the picture. */
export function listAnchors(page) {
  const { anchors, unit } = page;
  const list = $("anchor-list");
  const typing = document.activeElement?.closest?.("#anchor-list li")?.dataset.id;
  list.replaceChildren(
    ...anchors.items.slice(0, MOST_LISTED).map((anchor, i) => {
      const about = page.aboutAnchor(i);
      const item = element("li", about.suspect ? "suspect" : about.unused ? "unused" : "");
      item.dataset.id = anchor.id;
      const dot = element("span", "dot");
      dot.style.setProperty("--depth", about.colour);
      const input = element("input");
      input.value = formatNumber(anchor.depth_m, unit);
      input.inputMode = "decimal";
      input.size = 6;
      input.setAttribute("aria-label", `Distance of anchor ${i + 1} in ${unit}`);
      input.addEventListener("change", () => {
        const metres = parseLength(input.value, unit);
        if (metres === null) {
          page.complain(`Anchor ${i + 1} needs a distance above zero, found “${input.value.slice(0, 20)}”.`);
          input.value = formatNumber(anchor.depth_m, unit);
        } else if (metres !== anchor.depth_m) anchors.change(anchor.id, { depth_m: metres });
      });
      const field = element("span", "field");
      field.append(input, element("span", "", unit));
      const remove = element("button", "quiet icon", "✕");
      remove.setAttribute("aria-label", `Delete anchor ${i + 1}`);
      remove.addEventListener("click", () => anchors.remove(anchor.id));
      item.append(dot, field, element("span", "words", about.words), remove);
      return item;
    }),
  );
  const more = anchors.items.length - MOST_LISTED;
  if (more > 0) list.append(element("li", "", `… and ${more} more`));
  // The list is made anew; whoever was typing in it stays where they were.
  if (typing) (list.querySelector(`li[data-id="${typing}"] input`) ?? $("stage")).focus({ preventScroll: true });
}

export function element(name, kind = "", words = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (words) made.textContent = words;
  return made;
}

function put(node, x, y) {
  node.style.left = `${x}%`;
  node.style.top = `${y}%`;
}
