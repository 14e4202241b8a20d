// The list of anchors: rows keyed by anchor, so that focus, clicks and half-typed numbers stay.

import { element, sentence, setText } from "./dom.js";
import { isAbort } from "./server.js";
import { formatMeasured } from "./units.js";

const CHUNK = 100; // rows made at a time; more are made when the end of the list is scrolled into view

/** @typedef {import("./state.js").Anchor} Anchor */
/** @typedef {import("./readings.js").About} About */
/** @typedef {{read: (text: string) => Promise<number>, onChange: (id: number, depth_m: number, text: string) => void,
 *  onRemove: (id: number) => void,
 *    onHover: (id: number | null) => void, onMove: (id: number, du: number, dv: number) => void,
 *    onError: (sentence: string) => void}} Handlers */

export class AnchorRows {
  /** @param {HTMLElement} list @param {Handlers} handlers */
  constructor(list, handlers) {
    this.list = list;
    this.handlers = handlers;
    /** @type {Map<number, any>} */
    this.rows = new Map();
    /** @type {import("./units.js").Unit} */
    this.unit = "m";
    /** @type {(index: number) => About} */
    this.about = () => ({ colour: "", ink: "", suspect: false, unused: false, words: "", plate: "", slip: null });
    /** @type {number | null} */
    this.highlighted = null;
    this.shown = CHUNK;
    this.more = element("li", "more");
    new IntersectionObserver((entries) => {
      if (entries.some((e) => e.isIntersecting) && this.anchors.length > this.shown) {
        this.shown += CHUNK;
        this.draw(this.anchors, this.unit, this.about);
      }
    }, { root: list }).observe(this.more);
    /** @type {Anchor[]} */
    this.anchors = [];
    list.addEventListener("pointerleave", () => handlers.onHover(null));
  }

  /** @param {Anchor[]} anchors @param {import("./units.js").Unit} unit @param {(index: number) => About} about */
  draw(anchors, unit, about) {
    const unitChanged = this.unit !== unit;
    Object.assign(this, { anchors, unit, about });
    const gone = new Set(this.rows.keys());
    let before = this.list.firstElementChild;
    anchors.slice(0, this.shown).forEach((anchor, i) => {
      gone.delete(anchor.id);
      const row = this.rows.get(anchor.id) ?? this.make(anchor.id);
      if (row.item === before) before = row.item.nextElementSibling;
      else this.list.insertBefore(row.item, before);
      this.fill(row, anchor, i, unitChanged);
    });
    for (const id of gone) {
      const { item } = this.rows.get(id);
      const next = item.contains(document.activeElement)
        ? (item.nextElementSibling ?? item.previousElementSibling)
        : null;
      item.remove();
      this.rows.delete(id);
      next?.querySelector("button:last-child")?.focus({ preventScroll: true });
    }
    const left = anchors.length - this.shown;
    if (left > 0) {
      setText(this.more, `… and ${left} more`);
      if (this.list.lastElementChild !== this.more) this.list.append(this.more);
    } else this.more.remove();
  }

  /** @param {any} row @param {Anchor} anchor @param {number} i @param {boolean} unitChanged */
  fill(row, anchor, i, unitChanged) {
    const about = this.about(i), { unit } = this;
    row.item.classList.toggle("suspect", about.suspect);
    row.item.classList.toggle("unused", about.unused && !about.suspect);
    if (row.index !== i || unitChanged) {
      row.index = i;
      setText(row.number, String(i + 1));
      row.number.setAttribute("aria-label", `Anchor ${i + 1}. Arrow keys move it on the photo.`);
      row.input.setAttribute("aria-label", `Distance of anchor ${i + 1} in ${unit}`);
      row.remove.setAttribute("aria-label", `Delete anchor ${i + 1}`);
    }
    if (row.colour !== about.colour) row.number.style.setProperty("--depth", (row.colour = about.colour));
    // A field that is being edited keeps its text.
    const text = formatMeasured(anchor, unit),
      number = unit !== "ft" && text.endsWith(` ${unit}`) && /^[\d.]+ /.test(text);
    const shown = number ? text.split(" ")[0] : text;
    if (row.shown !== shown || unitChanged) {
      if (document.activeElement !== row.input || row.input.value === row.shown) row.input.value = shown;
      row.shown = shown;
    }
    setText(row.unit, number ? unit : "");
    setText(row.words, about.words);
    setText(row.slip, about.slip ? `${about.slip.text}?` : "");
    row.slip.hidden = !about.slip;
    row.slip.onclick = () => about.slip && this.handlers.onChange(anchor.id, about.slip.metres, about.slip.text);
  }

  /** @param {number} id */
  make(id) {
    const { handlers } = this;
    const item = element("li"), number = element("button", "number"), field = element("span", "field");
    const input = element("input"), unit = element("span"), cell = element("span", "words"), words = element("span");
    const slip = element("button", "chip"), remove = element("button", "quiet icon", "✕");
    item.dataset.id = id;
    number.type = remove.type = "button";
    Object.assign(input, { inputMode: "decimal", size: 6, autocomplete: "off", spellcheck: false });
    field.append(input, unit);
    cell.append(words, slip);
    item.append(number, field, cell, remove);
    const row = { item, number, input, unit, words, slip, remove, shown: "", index: -1, colour: "", asked: {} };
    const restore = () => {
      row.asked = {}; // what is being read is dropped
      input.value = row.shown;
      input.setAttribute("aria-invalid", "false");
    };
    const commit = async () => {
      const text = input.value, asked = (row.asked = {});
      if (text === row.shown) return;
      try {
        const depth_m = await handlers.read(text);
        if (row.asked !== asked) return;
        handlers.onChange(id, depth_m, text);
        input.setAttribute("aria-invalid", "false");
      } catch (e) {
        if (isAbort(e) || row.asked !== asked) return;
        handlers.onError(sentence(`Anchor ${row.index + 1}: ${/** @type {Error} */ (e).message}`));
        if (document.activeElement !== input) restore();
        else input.setAttribute("aria-invalid", String(input.value === text));
      }
    };
    input.addEventListener("change", commit);
    input.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => e.key === "Escape" && restore());
    // Text that could not be read is replaced by the value of the anchor.
    input.addEventListener("blur", () => input.getAttribute("aria-invalid") === "true" && restore());
    remove.addEventListener("click", () => handlers.onRemove(id));
    item.addEventListener("pointerenter", () => handlers.onHover(id));
    item.addEventListener("focusin", () => handlers.onHover(id));
    item.addEventListener("focusout", () => handlers.onHover(null));
    number.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => {
      /** @type {Record<string, [number, number]>} */
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const far = e.shiftKey ? 10 : 1;
      if (e.key === "Delete" || e.key === "Backspace") handlers.onRemove(id);
      else if (e.key in steps) handlers.onMove(id, far * steps[e.key][0], far * steps[e.key][1]);
      else return;
      e.preventDefault();
    });
    this.rows.set(id, row);
    return row;
  }

  /** Mark the row of the anchor under the pointer. @param {number | null} id */
  highlight(id) {
    if (this.highlighted === id) return;
    if (this.highlighted !== null) this.rows.get(this.highlighted)?.item.classList.remove("hovered");
    this.highlighted = id;
    if (id !== null) this.rows.get(id)?.item.classList.add("hovered");
  }
}
