// The user's work: projects, their anchors and measurements, and the history of edits.

/** `text` is the distance as it was typed, and `slant` whether it is along the ray.
 *  @typedef {{id: number, u: number, v: number, depth_m: number, sigma_m: number | null, text?: string,
 *    slant?: boolean}} Anchor */
/** @typedef {"distance" | "path" | "area" | "height" | "level" | "upright"} MeasureKind */
/** @typedef {{u: number, v: number}} Pixel */
/** A length or plane over the photo. With `known` it was measured in the scene, and counts: the metres (for an area,
 *  square
 *  metres) and the text that was typed, which may name an object. Planes always count.
 *  @typedef {{id: number, kind: MeasureKind, points: Pixel[], name?: string, known?: Known}} Measurement */
/** @typedef {{value_m: number, text: string, object?: string}} Known */
/** The part of a project that undo reaches; never changed in place.
 *  @typedef {{anchors: Anchor[], measurements: Measurement[]}} Work */
/** @typedef {{deg: number, source: "EXIF" | "sample" | "given" | "assumed"}} FieldOfView */
/** @typedef {{method: string, compare: string, view: string, blend: number, fov: FieldOfView | null}} Settings */
/** @typedef {{key: string, name: string, kind: string, resize: boolean, array: string}} DepthFile */
/** @typedef {{id: string, name: string, photo: string, sample: string, width: number, height: number,
 *    depth: DepthFile | null, settings: Settings, work: Work, updated: number, deleted?: number,
 *    thumbnail: Blob | null}} Project */
/** @typedef {{project: string, work: Work}} Step */

export const MOST_STEPS = 100;

/** @returns {Work} */
export const emptyWork = () => ({ anchors: [], measurements: [] });

/** Whether a project holds anything that a user made. @param {{work: Work, depth?: DepthFile | null}} project */
export const hasWork = ({ work, depth }) => Boolean(work.anchors.length || work.measurements.length || depth);

/** An id that no other tab makes. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
}

/** A number above those of all items.
 *  @param {{id: number}[]} items */
const nextId = (items) => items.reduce((most, item) => Math.max(most, item.id), 0) + 1;

/** @param {Work} work @param {{u: number, v: number, depth_m: number, sigma_m?: number | null, text?: string,
 *    slant?: boolean}} anchor @returns {Work} */
export function addAnchor(work, { u, v, depth_m, sigma_m = null, text, slant }) {
  const typed = { ...(text && { text }), ...(slant && { slant }) };
  return { ...work, anchors: [...work.anchors, { id: nextId(work.anchors), u, v, depth_m, sigma_m, ...typed }] };
}

/** @param {Work} work @param {number} id @param {Partial<Anchor>} values @returns {Work} */
export function changeAnchor(work, id, values) {
  return { ...work, anchors: work.anchors.map((a) => (a.id === id ? { ...a, ...values } : a)) };
}

/** @param {Work} work @param {number} id @returns {Work} */
export const removeAnchor = (work, id) => ({ ...work, anchors: work.anchors.filter((a) => a.id !== id) });

/** @param {Work} work @param {{u: number, v: number, depth_m: number, sigma_m?: number | null}[]} rows
 *  @returns {Work} */
export function replaceAnchors(work, rows) {
  const first = nextId(work.anchors);
  return {
    ...work,
    anchors: rows.map(({ u, v, depth_m, sigma_m = null }, i) => ({ id: first + i, u, v, depth_m, sigma_m })),
  };
}

/** @param {Work} work @param {MeasureKind} kind @param {Pixel[]} points @returns {Work} */
export function addMeasurement(work, kind, points) {
  return { ...work, measurements: [...work.measurements, { id: nextId(work.measurements), kind, points }] };
}

/** @param {Work} work @param {number} id @param {Partial<Measurement>} values @returns {Work} */
export function changeMeasurement(work, id, values) {
  return { ...work, measurements: work.measurements.map((m) => (m.id === id ? { ...m, ...values } : m)) };
}

/** The pixel of an anchor, or of a point of a measurement. @typedef {{id: number, point: number | null}} Handle */

/** @param {Work} work @param {Handle} handle @param {Pixel} pixel @returns {Work} */
export function movePoint(work, { id, point }, { u, v }) {
  if (point === null) return changeAnchor(work, id, { u, v });
  const points = (/** @type {Pixel[]} */ all) => all.map((p, i) => (i === point ? { u, v } : p));
  return {
    ...work, measurements: work.measurements.map((m) => (m.id === id ? { ...m, points: points(m.points) } : m)),
  };
}

/** The kinds that are planes: they have no length, and always count. */
export const PLANES = new Set(["level", "upright"]);

/** Whether a measurement counts: known lengths and planes do. @param {Measurement} measurement */
export const isGiven = ({ kind, known }) => Boolean(known) || PLANES.has(kind);

/** What the server is given besides anchors. @param {Work} work */
export function givenOf({ measurements }) {
  return measurements.filter(isGiven).map(({ kind, points, known }) => {
    const given = known && !known.object ? { value_m: known.value_m } : {};
    return { kind: known?.object ?? kind, points: points.map(({ u, v }) => ({ u, v })), ...given };
  });
}

/** Whether anything says how large the scene is. @param {Work} work @param {string} method */
export const hasScale = ({ anchors, measurements }, method) =>
  anchors.length > 0 || (method === "field" && measurements.some((m) => m.known));

/** @param {Work} work @param {number} id @returns {Work} */
export const removeMeasurement = (work, id) => ({
  ...work, measurements: work.measurements.filter((m) => m.id !== id),
});

/** Steps back and forth over all projects of a tab, so that undo also returns to an earlier photo. */
export class History {
  /** @param {{past?: Step[], present?: Step | null, future?: Step[]}} [saved] */
  constructor({ past = [], present = null, future = [] } = {}) {
    this.past = past;
    this.present = present;
    this.future = future;
  }

  /** Add a step to the history and make it the present one. @param {string} project @param {Work} work */
  commit(project, work) {
    if (this.present) this.past = [...this.past.slice(1 - MOST_STEPS), this.present];
    this.present = { project, work };
    this.future = [];
  }

  /** Change the present step, for example during a drag. @param {Work} work */
  amend(work) {
    if (this.present) this.present = { ...this.present, work };
  }

  undo() {
    const step = this.past.at(-1);
    if (!step || !this.present) return null;
    this.future = [...this.future, this.present];
    this.past = this.past.slice(0, -1);
    return (this.present = step);
  }

  redo() {
    const step = this.future.at(-1);
    if (!step || !this.present) return null;
    this.past = [...this.past, this.present];
    this.future = this.future.slice(0, -1);
    return (this.present = step);
  }

  /** The history with other project ids, for a copied tab. @param {Map<string, string>} ids */
  renamed(ids) {
    /** @param {Step} step */
    const rename = (step) => ({ ...step, project: ids.get(step.project) ?? step.project });
    return new History({
      past: this.past.map(rename), present: this.present && rename(this.present), future: this.future.map(rename),
    });
  }

  /** The history shortened to steps with at most `mostAnchors` anchors together.
   *  @param {number} mostAnchors */
  shortened(mostAnchors) {
    /** @param {Step[]} steps the oldest first */
    const last = (steps) => {
      let anchors = 0;
      const first = steps.findLastIndex((s) => (anchors += s.work.anchors.length) > mostAnchors);
      return steps.slice(first + 1);
    };
    return new History({ past: last(this.past), present: this.present, future: last(this.future) });
  }

  /** Drop the steps of a project that is deleted. @param {string} project */
  forget(project) {
    this.past = this.past.filter((s) => s.project !== project);
    this.future = this.future.filter((s) => s.project !== project);
    if (this.present?.project === project) this.present = null;
  }

  /** Projects that some step still needs. */
  projects() {
    return new Set([...this.past, ...(this.present ? [this.present] : []), ...this.future].map((s) => s.project));
  }
}

/** The server counts anchors from 0, the page from 1. @param {string} sentence */
export const countedFromOne = (sentence) => sentence.replace(/#(\d+)/g, (_, n) => `#${Number(n) + 1}`);

/** Groups of anchors on one pixel, by index. @param {Anchor[]} anchors @returns {number[][]} */
export function doubledAnchors(anchors) {
  /** @type {Map<string, number[]>} */
  const groups = new Map();
  anchors.forEach(({ u, v }, i) => {
    const key = `${Math.round(u)} ${Math.round(v)}`;
    groups.set(key, [...(groups.get(key) ?? []), i]);
  });
  return [...groups.values()].filter((group) => group.length > 1);
}
