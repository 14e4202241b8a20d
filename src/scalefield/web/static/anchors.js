// The anchors, with undo. They live in the page; the server sees them anew at every edit.

const MOST_STEPS = 200;

export class AnchorList {
  constructor(onChange) {
    this.items = []; // {id, u, v, depth_m}, never changed in place
    this.past = [];
    this.future = [];
    this.nextId = 1;
    this.onChange = onChange;
  }

  get(id) {
    return this.items.find((a) => a.id === id);
  }

  add(u, v, depth_m) {
    const anchor = { id: this.nextId++, u, v, depth_m };
    this.replaceAll([...this.items, anchor]);
    return anchor;
  }

  change(id, values) {
    this.replaceAll(this.items.map((a) => (a.id === id ? { ...a, ...values } : a)));
  }

  /** Moving by hand is one step however many events it has: `remember` is called once, before. */
  remember() {
    this.past = [...this.past.slice(-MOST_STEPS), this.items];
    this.future = [];
  }

  move(id, u, v) {
    this.items = this.items.map((a) => (a.id === id ? { ...a, u, v } : a));
    this.onChange();
  }

  remove(id) {
    this.replaceAll(this.items.filter((a) => a.id !== id));
  }

  replaceAll(items) {
    this.remember();
    this.items = items.map((a) => (a.id ? a : { ...a, id: this.nextId++ }));
    this.onChange();
  }

  reset() {
    this.items = [];
    this.past = [];
    this.future = [];
    this.onChange();
  }

  undo() {
    if (!this.past.length) return;
    this.future.push(this.items);
    this.items = this.past.pop();
    this.onChange();
  }

  redo() {
    if (!this.future.length) return;
    this.past.push(this.items);
    this.items = this.future.pop();
    this.onChange();
  }
}

/** Anchors of CSV text, checked against the photo; throws an Error with a sentence. */
export function parseCsv(text, width, height) {
  const lines = text.split(/\r?\n/).map((l, i) => [l.replace(/^\ufeff/, "").trim(), i + 1]).filter(([l]) => l);
  if (!lines.length) throw new Error("There is no line with an anchor in it.");
  let columns = ["u", "v", "depth_m"];
  const first = split(lines[0][0]);
  if (first.some((cell) => Number.isNaN(Number(cell)))) {
    columns = first.map((c) => c.toLowerCase());
    const missing = ["u", "v", "depth_m"].find((c) => !columns.includes(c));
    if (missing) throw new Error(`The header lacks ${missing}; wanted u,v,depth_m, found ${lines[0][0].slice(0, 60)}.`);
    lines.shift();
  }
  return lines.map(([line, number]) => {
    const cells = split(line);
    if (cells.length < 3 || cells.length < columns.length) throw new Error(`Line ${number}: wanted ${columns.length} fields, found ${cells.length}.`);
    const row = Object.fromEntries(columns.map((c, i) => [c, cells[i] === "" ? NaN : Number(cells[i])]));
    const { u, v, depth_m } = row;
    if (![u, v, depth_m].every(Number.isFinite)) throw new Error(`Line ${number}: u, v and depth_m must be numbers, found ${line.slice(0, 60)}.`);
    if (depth_m <= 0) throw new Error(`Line ${number}: depth_m must be above zero, found ${depth_m}.`);
    if (u < -0.5 || v < -0.5 || u >= width - 0.5 || v >= height - 0.5) {
      throw new Error(`Line ${number}: u=${u}, v=${v} lies outside the photo of ${width}×${height} pixels.`);
    }
    return { u, v, depth_m };
  });
}

const split = (line) => line.split(/[,;\t]/).map((cell) => cell.trim());

export function toCsv(items) {
  return ["u,v,depth_m", ...items.map((a) => `${a.u},${a.v},${a.depth_m}`), ""].join("\n");
}
