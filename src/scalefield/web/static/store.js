// Photos and projects in the browser's own database, choices in its storage; in memory where it refuses them.

import { hasWork } from "./state.js";

/** @typedef {import("./state.js").Project} Project */
/** @typedef {{id: string, projects: string[], history: object, updated: number}} Tab */
/** @typedef {"photos" | "projects" | "tabs"} StoreName */

const NAME = "scalefield", VERSION = 1, DAY_MS = 24 * 3600e3;
/** @type {StoreName[]} */
const STORES = ["photos", "projects", "tabs"];

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
const settled = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

export class Store {
  /** @param {IDBDatabase | null} database */
  constructor(database) {
    this.database = database;
    /** @type {Record<string, Map<string, any>>} */
    this.memory = Object.fromEntries(STORES.map((name) => [name, new Map()]));
  }

  /** @returns {Promise<Store>} */
  static async open() {
    try {
      const opening = indexedDB.open(NAME, VERSION);
      opening.onupgradeneeded = () => {
        for (const name of STORES) opening.result.createObjectStore(name);
      };
      const database = await settled(opening);
      database.onversionchange = () => database.close();
      return new Store(database);
    } catch {
      return new Store(null);
    }
  }

  /** Whether the work is kept after the page is closed. */
  get lasting() {
    return this.database !== null;
  }

  /** A transaction over one or all kinds. @param {StoreName | StoreName[]} names
   *  @param {"readonly" | "readwrite"} mode */
  transaction(names, mode) {
    return /** @type {IDBDatabase} */ (this.database).transaction(names, mode, { durability: "strict" });
  }

  /** @param {StoreName} name @param {string} key */
  async get(name, key) {
    if (!this.database) return this.memory[name].get(key);
    return settled(this.transaction(name, "readonly").objectStore(name).get(key));
  }

  /** @param {StoreName} name @returns {Promise<any[]>} */
  async all(name) {
    if (!this.database) return [...this.memory[name].values()];
    return settled(this.transaction(name, "readonly").objectStore(name).getAll());
  }

  /** Write values, all of them or none; undefined deletes. @param {[StoreName, string, any][]} entries */
  async write(...entries) {
    if (!this.database) {
      for (const [name, key, value] of entries) {
        if (value === undefined) this.memory[name].delete(key);
        else this.memory[name].set(key, value);
      }
      return;
    }
    const transaction = this.transaction([...new Set(entries.map(([name]) => name))], "readwrite");
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(undefined);
      transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error("it was aborted"));
    });
    for (const [name, key, value] of entries) {
      const store = transaction.objectStore(name);
      if (value === undefined) store.delete(key);
      else store.put(value, key);
    }
    await done;
  }

  /** Delete what nobody can miss: projects that were deleted a day ago, photos of no project, histories of tabs that
   *  were closed a month ago; and, while `excess_bytes` are to be freed, projects without any work, the oldest first.
   *  @param {(project: Project) => Promise<boolean>} isOpen whether a tab has it open @param {number} [excess_bytes]
   *  @param {number} [now] */
  async tidy(isOpen, excess_bytes = 0, now = Date.now()) {
    const photos = await this.photos(); // before the projects: a photo is written together with its project
    const projects = await this.all("projects"), kept = new Set(projects);
    const old = (/** @type {number} */ time, days = 1) => now - time > days * DAY_MS;
    /** @type {[StoreName, string, undefined][]} */
    const gone = [];
    let excess = excess_bytes;
    for (const project of projects.sort((a, b) => a.updated - b.updated)) {
      const spare = excess > 0 && !hasWork(project) && old(project.updated);
      if (!(project.deleted ? old(project.deleted) : spare) || (await isOpen(project))) continue;
      kept.delete(project);
      gone.push(["projects", project.id, undefined]);
      excess -= photos.get(project.photo) ?? 0;
    }
    const needed = new Set([...kept].flatMap((p) => [p.photo, p.depth?.key]));
    for (const key of photos.keys()) if (!needed.has(key)) gone.push(["photos", key, undefined]);
    for (const { id, updated } of await this.all("tabs"))
      if (old(updated ?? now, 30)) gone.push(["tabs", id, undefined]);
    if (gone.length) await this.write(...gone);
  }

  /** The bytes of every photo and depth file, by key. @returns {Promise<Map<string, number>>} */
  async photos() {
    const size = (/** @type {Blob} */ blob) => blob.size ?? 0;
    if (!this.database) return new Map([...this.memory.photos].map(([key, blob]) => [key, size(blob)]));
    const store = this.transaction("photos", "readonly").objectStore("photos");
    const [keys, blobs] = await Promise.all([settled(store.getAllKeys()), settled(store.getAll())]);
    return new Map(keys.map((key, i) => [String(key), size(blobs[i])]));
  }
}

/** Short texts that outlive a reload of the page. */
export class Texts {
  /** @param {() => Storage} storage throws in a private window that refuses one */
  constructor(storage) {
    this.storage = storage;
    /** @type {Map<string, string>} */
    this.memory = new Map();
  }

  /** @param {(storage: Storage) => string | null | void} work @returns {string | null} */
  stored(work) {
    try {
      return work(this.storage()) ?? null;
    } catch {
      return null;
    }
  }

  /** @param {string} key */
  get(key) {
    return this.memory.get(key) ?? this.stored((storage) => storage.getItem(`scalefield.${key}`));
  }

  /** @param {string} key @param {string} value */
  set(key, value) {
    this.memory.set(key, value);
    this.stored((storage) => storage.setItem(`scalefield.${key}`, value));
  }

  /** @param {string} key */
  delete(key) {
    this.memory.delete(key);
    this.stored((storage) => storage.removeItem(`scalefield.${key}`));
  }
}

export const ofBrowser = new Texts(() => localStorage);
export const ofTab = new Texts(() => sessionStorage);

/** Asks the other tabs, on a channel, whether they have a tab's work or a project open. */
export class OtherTabs {
  /** @param {(id: string) => boolean} holds whether this tab has a tab id or project id open */
  constructor(holds) {
    this.channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("scalefield");
    /** @type {Map<string, () => void>} */
    this.asked = new Map();
    this.channel?.addEventListener("message", ({ data }) => {
      if (data.ask && holds(data.ask)) this.channel?.postMessage({ held: data.ask });
      if (data.held) this.asked.get(data.held)?.();
    });
  }

  /** Whether another tab has it open; no answer within `timeout_ms` means no.
   *  @param {string} id @returns {Promise<boolean>} */
  async haveOpen(id, timeout_ms = 150) {
    if (!this.channel) return false;
    const answer = new Promise((resolve) => {
      this.asked.set(id, () => resolve(true));
      setTimeout(() => resolve(false), timeout_ms);
    });
    this.channel.postMessage({ ask: id });
    const held = await answer;
    this.asked.delete(id);
    return held;
  }
}
