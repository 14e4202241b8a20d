// A server session for every project: created when needed, and again when the server has lost it.

import { ServerError, isAbort } from "./server.js";
import { ofTab } from "./store.js";

/** @typedef {import("./server.js").Session} Session */
/** @typedef {import("./state.js").Project} Project */

const RETRY_MS = 1500;

export class Sessions {
  /** @param {import("./server.js").Server} server
   *  @param {(key: string) => Promise<Blob | undefined>} readBlob photos and depth files by their key
   *  @param {(offline: boolean) => void} onOffline */
  constructor(server, readBlob, onOffline) {
    this.server = server;
    this.readBlob = readBlob;
    this.onOffline = onOffline;
  }

  /** The session id of a project, also from before a reload of this tab. @param {string} project */
  knownId(project) {
    return ofTab.get(`session.${project}`);
  }

  /** @param {string} project @param {string} id */
  remember(project, id) {
    ofTab.set(`session.${project}`, id);
  }

  /** @param {string} project */
  forget(project) {
    const id = this.knownId(project);
    ofTab.delete(`session.${project}`);
    if (id) this.server.drop(id);
  }

  /** The ready session of a project; the photo is sent where the server has none.
   *  @param {Project} project @param {(session: {step: string, progress: number}) => void} onProgress
   *  @param {AbortSignal} [signal] @returns {Promise<Session>} */
  async ready(project, onProgress, signal) {
    return this.withRetries(async () => {
      const known = this.knownId(project.id);
      if (known) {
        try {
          return await this.server.untilReady(await this.server.session(known, signal), onProgress, signal);
        } catch (e) {
          if (!(e instanceof ServerError) || !["session_gone", "failed"].includes(e.code)) throw e;
        }
      }
      return this.create(project, onProgress, signal);
    }, signal);
  }

  /** @param {Project} project @param {(session: {step: string, progress: number}) => void} onProgress
   *  @param {AbortSignal} [signal] */
  async create(project, onProgress, signal) {
    onProgress({ step: "sending the photo", progress: 0.02 });
    let session;
    if (project.sample) session = await this.server.createSample(project.sample, signal);
    else {
      const photo = await this.readBlob(project.photo);
      if (!photo) throw new ServerError("lost", "The photo of this project is no longer in this browser.");
      session = await this.server.createSession(photo, project.name, signal);
    }
    const { anchors } = session;
    session = await this.server.untilReady(session, onProgress, signal);
    if (project.depth) {
      const file = await this.readBlob(project.depth.key);
      if (!file) throw new ServerError("lost", "The depth file of this project is no longer in this browser.");
      session = await this.server.untilReady(
        await this.server.bringDepth(session.id, file, project.depth, signal), onProgress, signal,
      );
    }
    this.remember(project.id, session.id);
    return anchors ? { ...session, anchors } : session;
  }

  /** The result of `work` with a session. A lost session is created again, and a server that does not answer is asked
   *  again.
   *  @template T @param {Project} project @param {(id: string) => Promise<T>} work
   *  @param {AbortSignal} [signal] @returns {Promise<T>} */
  async use(project, work, signal) {
    return this.withRetries(async () => {
      try {
        const id = this.knownId(project.id) ?? (await this.create(project, () => {}, signal)).id;
        return await work(id);
      } catch (e) {
        if (!(e instanceof ServerError) || e.code !== "session_gone") throw e;
        return work((await this.create(project, () => {}, signal)).id);
      }
    }, signal);
  }

  /** Try again while the server does not answer. @template T @param {() => Promise<T>} work
   *  @param {AbortSignal} [signal] @returns {Promise<T>} */
  async withRetries(work, signal) {
    for (;;) {
      try {
        const result = await work();
        this.onOffline(false);
        return result;
      } catch (e) {
        if (isAbort(e) || !(e instanceof ServerError) || e.code !== "offline") throw e;
        this.onOffline(true);
        await new Promise((go) => setTimeout(go, RETRY_MS));
        signal?.throwIfAborted();
      }
    }
  }
}
