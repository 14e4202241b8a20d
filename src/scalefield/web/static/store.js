// Photos and projects in the browser's own database, choices in its storage; in memory where it refuses them.

/** @typedef {import("./state.js").Project} Project */
/** @typedef {{id: string, projects: string[], history: object}} Tab */
/** @typedef {"photos" | "projects" | "tabs"} StoreName */

const NAME = "scalefield", VERSION = 1;
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

  /** @param {StoreName} name @param {"readonly" | "readwrite"} mode */
  in(name, mode) {
    return /** @type {IDBDatabase} */ (this.database).transaction(name, mode, { durability: "strict" }).objectStore(name);
  }

  /** @param {StoreName} name @param {string} key */
  async get(name, key) {
    return this.database ? settled(this.in(name, "readonly").get(key)) : this.memory[name].get(key);
  }

  /** @param {StoreName} name @param {string} key @param {any} value */
  async put(name, key, value) {
    if (this.database) await settled(this.in(name, "readwrite").put(value, key));
    else this.memory[name].set(key, value);
  }

  /** @param {StoreName} name @param {string} key */
  async delete(name, key) {
    if (this.database) await settled(this.in(name, "readwrite").delete(key));
    else this.memory[name].delete(key);
  }

  /** @param {StoreName} name @returns {Promise<any[]>} */
  async all(name) {
    return this.database ? settled(this.in(name, "readonly").getAll()) : [...this.memory[name].values()];
  }

  /** Delete what no kept project needs: the oldest projects beyond `most`, tabs without projects,
   *  photos of none. @param {number} most @param {Set<string>} needed projects that stay in any case */
  async deleteUnneeded(most, needed) {
    const projects = (await this.all("projects")).sort((a, b) => b.updated - a.updated);
    const kept = projects.filter((p, i) => i < most || needed.has(p.id));
    const ids = new Set(kept.map((p) => p.id));
    for (const { id } of projects) if (!ids.has(id)) await this.delete("projects", id);
    for (const tab of await this.all("tabs")) if (!tab.projects.some((/** @type {string} */ id) => ids.has(id))) await this.delete("tabs", tab.id);
    const photos = new Set(kept.flatMap((p) => [p.photo, ...(p.depth ? [p.depth.key] : [])]));
    const stored = this.database ? await settled(this.in("photos", "readonly").getAllKeys()) : [...this.memory.photos.keys()];
    for (const key of stored) if (!photos.has(String(key))) await this.delete("photos", String(key));
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
