// The card of a point: the depth there, and the input of its measured distance.

import { $, element, fillReading, sentence, setText } from "./dom.js";
import { metresAt } from "./readings.js";
import { isAbort } from "./server.js";
import { UNITS, exactNumber, formatMeasured } from "./units.js";

/** A pixel with its anchor, if it has one; `asked` is the latest request to read its length.
 *  @typedef {{u: number, v: number, id: number | null, asked?: object | null}} Pin */

export class Card {
  /** @param {any} page */
  constructor(page) {
    this.page = page;
    /** @type {Pin | null} */
    this.pin = null;
    this.given = "";
    this.slant = false;
    $("card-form").addEventListener("submit", (/** @type {Event} */ e) => {
      e.preventDefault();
      this.answer();
    });
    $("card").addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => {
      if (e.key === "Escape") this.close(true);
      if (!e.ctrlKey && !e.metaKey) e.stopPropagation();
    });
    $("card-set").addEventListener("click", () => this.showForm(true));
    $("card-close").addEventListener("click", () => this.close(true));
    $("card-delete").addEventListener("click", () => {
      const { pin } = this;
      this.close(true);
      if (pin && pin.id !== null) page.removeAnchor(pin.id);
    });
    $("card-units").append(...UNITS.map((unit) => {
      const chip = element("button", "chip", unit);
      chip.type = "button";
      chip.addEventListener("click", () => this.insert(` ${unit} `));
      return chip;
    }));
  }

  /** @param {import("./geometry.js").Pixel} pixel @param {number | null} id of the anchor there
   *  @param {string} pointer mouse, touch, pen or keyboard */
  open(pixel, id, pointer) {
    const { page } = this, { unit } = page;
    const anchor = id === null ? null : page.work.anchors.find((/** @type {any} */ a) => a.id === id);
    const truth = page.loaded.logTruth ? metresAt(page.session, page.loaded.logTruth, pixel) : null;
    this.pin = { u: pixel.u, v: pixel.v, id };
    this.slant = Boolean(anchor?.slant);
    this.given = anchor ? formatMeasured(anchor, unit).replace(new RegExp(` ${unit}$`), "") : "";
    $("card-value").value = anchor ? this.given : truth ? String(Number((truth).toPrecision(3))) : "";
    if (!anchor && truth && unit !== "m") $("card-value").value = exactNumber(Number(truth.toPrecision(3)), unit);
    setText($("card-unit"), unit);
    $("card-slant").checked = Boolean(anchor?.slant);
    $("card-delete").hidden = !anchor;
    $("card").setAttribute("aria-label", anchor ? `Anchor ${page.work.anchors.indexOf(anchor) + 1}` : "This point");
    this.hint(
      truth && !anchor ? "Measured for you in this sample." : "Straight ahead of the camera, if not along the slant.",
    );
    const reading = this.showReading();
    page.measuring.update();
    $("readout").hidden = true;
    $("card").hidden = false;
    // A tap shows the depth, and a button opens the input. With a mouse or keys the input is open at once.
    this.showForm(pointer !== "touch" || !reading || Boolean(anchor), pointer !== "touch");
    page.stage.placeCard();
    page.stage.redraw();
  }

  /** What is known of the point, or null. */
  showReading() {
    const reading = this.pin && this.page.reading(this.pin);
    $("card-reading").hidden = !reading;
    if (reading) fillReading($("card-reading"), reading);
    return reading;
  }

  /** @param {boolean} shown @param {boolean} [focus] */
  showForm(shown, focus = true) {
    $("card-form").hidden = !shown;
    $("card-set").hidden = shown;
    if (shown && focus) {
      $("card-value").focus({ preventScroll: true });
      $("card-value").select();
    }
    this.page.stage.placeCard();
  }

  /** Insert a unit at the caret: the number keys of a phone have no letters. @param {string} words */
  insert(words) {
    const input = $("card-value"),
      end =
        input.selectionStart === 0 && input.selectionEnd === input.value.length
          ? input.value.length
          : (input.selectionEnd ?? input.value.length);
    input.setRangeText(words, end, end, "end");
    input.focus({ preventScroll: true });
  }

  /** @param {string} words @param {boolean} [bad] @param {Record<string, number>} [readings] in metres */
  hint(words, bad = false, readings = {}) {
    setText($("card-hint"), words);
    $("card-hint").classList.toggle("error", bad);
    $("card-value").setAttribute("aria-invalid", String(bad));
    $("card-readings").replaceChildren(...Object.entries(readings).map(([text, metres]) => {
      const chip = element("button", "chip", text);
      chip.type = "button";
      chip.addEventListener("click", () => this.pin && this.set(this.pin, metres, text));
      return chip;
    }));
  }

  /** Set what is typed. A card that is closed by Escape or ✕ meanwhile sets nothing. */
  async answer() {
    const text = $("card-value").value, { pin, page } = this;
    // With unchanged text the anchor keeps every digit.
    if (!pin || (this.given && text === this.given && $("card-slant").checked === this.slant)) return this.close(true);
    const asked = (pin.asked = {});
    try {
      const metres = await page.readLength(text);
      if (pin.asked === asked) this.set(pin, metres, text);
    } catch (e) {
      if (isAbort(e) || pin.asked !== asked) return;
      const { message, readings } = /** @type {import("./server.js").ServerError} */ (e);
      if (this.pin !== pin) return page.showError(sentence(message));
      this.hint(sentence(message), true, readings);
      page.stage.placeCard();
    }
  }

  /** @param {Pin} pin @param {number} metres @param {string} text */
  set(pin, metres, text) {
    const slant = $("card-slant").checked;
    if (slant && !this.page.fov) return this.page.tools.askFov(() => this.set(pin, metres, text));
    pin.asked = null;
    if (this.pin === pin) this.close(true);
    this.page.setDistance(pin, metres, pin.id, text, slant);
  }

  /** @param {boolean} refocus */
  close(refocus) {
    if (!this.pin) return;
    if (refocus) this.pin.asked = null;
    this.pin = null;
    $("card").hidden = true;
    if (refocus) $("stage").focus({ preventScroll: true });
    this.page.stage.redraw();
  }
}
