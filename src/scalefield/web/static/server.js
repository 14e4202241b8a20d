// Requests to the server, and the format of its maps (see wire.py).

/** @typedef {{shape: number[], values: Float32Array}} MapValues */
/** @typedef {{header: any, maps: Record<string, MapValues>}} Packed */
/** @typedef {{id: string, state: string, name: string, width: number, height: number, display_width: number,
 *    display_height: number, fov_deg: number | null, fov_source: string, sample: string, step: string, progress:
 *  number,
 *    error: string, relative_depth: string, kind: string, revision: number, anchors?: any[]}} Session */

const HOLE = 65535, STEPS = 65534;

/** An error of the server or of the connection; `code` identifies its kind. */
export class ServerError extends Error {
  /** @param {string} code @param {string} sentence
   *  @param {{choices?: string[], readings?: Record<string, number>}} [more] arrays of a depth file,
   *      or readings of a length in metres */
  constructor(code, sentence, { choices = [], readings = {} } = {}) {
    super(sentence);
    this.code = code;
    this.choices = choices;
    this.readings = readings;
  }
}

/** @param {unknown} e */
export const isAbort = (e) => e instanceof DOMException && e.name === "AbortError";

/** The error of work whose result is no longer wanted. */
export const aborted = () => new DOMException("The result is no longer wanted.", "AbortError");

export class Server {
  /** @param {string} client names this tab, for its fair share of the server's time */
  constructor(client) {
    this.client = client;
  }

  /** @param {string} path @param {RequestInit} [options] */
  async ask(path, options = {}) {
    let response;
    try {
      response = await fetch(path, { ...options, headers: { ...options.headers, "x-scalefield-client": this.client } });
    } catch (e) {
      if (isAbort(e)) throw e;
      throw new ServerError("offline", "The server does not answer. Is `scalefield web` still running?");
    }
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    throw new ServerError(
      body.code ?? `http_${response.status}`, body.error ?? `The server answered ${response.status}.`, body,
    );
  }

  /** @param {string} path @param {object} body @param {AbortSignal} [signal] */
  post(path, body, signal) {
    return this.ask(path, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
    });
  }

  async info() {
    return (await this.ask("/api")).json();
  }

  /** The metres that a text states.
   *  @param {string} text @param {string} unit of a number without one @returns {Promise<number>} */
  async readLength(text, unit) {
    return (await (await this.post("/api/length", { text, unit })).json()).length_m;
  }

  /** @param {string} id @param {string | Blob} table
   *  @returns {Promise<{u: number, v: number, depth_m: number, sigma_m?: number}[]>} */
  async readTable(id, table) {
    return (await (await this.ask(`/api/sessions/${id}/table`, { method: "POST", body: table })).json()).anchors;
  }

  /** @param {Blob} photo @param {string} name @param {AbortSignal} [signal] @returns {Promise<Session>} */
  async createSession(photo, name, signal) {
    return (
      await this.ask(`/api/sessions?${new URLSearchParams({ name })}`, { method: "POST", body: photo, signal })
    ).json();
  }

  /** @param {string} name @param {AbortSignal} [signal] @returns {Promise<Session>} */
  async createSample(name, signal) {
    return (await this.ask(`/api/samples/${encodeURIComponent(name)}`, { method: "POST", signal })).json();
  }

  /** @param {string} name */
  async samplePhoto(name) {
    return (await this.ask(`/api/samples/${encodeURIComponent(name)}/photo`)).blob();
  }

  /** @param {string} id @param {AbortSignal} [signal] @returns {Promise<Session>} */
  async session(id, signal) {
    return (await this.ask(`/api/sessions/${id}`, { signal })).json();
  }

  /** @param {string} id */
  drop(id) {
    return this.ask(`/api/sessions/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
  }

  /** @param {string} id @param {AbortSignal} [signal] */
  async photo(id, signal) {
    return (await this.ask(`/api/sessions/${id}/photo.jpg`, { signal })).blob();
  }

  /** @param {string} id @param {Blob} file @param {{name: string, kind: string, resize: boolean, array: string}} about
   *  @param {AbortSignal} [signal] @returns {Promise<Session>} */
  async bringDepth(id, file, { name, kind, resize, array }, signal) {
    const query = new URLSearchParams({ name, kind, resize: String(resize), ...(array ? { key: array } : {}) });
    return (await this.ask(`/api/sessions/${id}/depth?${query}`, { method: "PUT", body: file, signal })).json();
  }

  /** @param {string} id @param {string} path @param {AbortSignal} [signal] @returns {Promise<Packed>} */
  async packed(id, path, signal) {
    return unpack(await (await this.ask(`/api/sessions/${id}/${path}`, { signal })).arrayBuffer());
  }

  /** @param {string} id @param {object} edit @param {AbortSignal} [signal] @returns {Promise<Packed>} */
  async recover(id, edit, signal) {
    return unpack(await (await this.post(`/api/sessions/${id}/recover`, edit, signal)).arrayBuffer());
  }

  /** @param {string} id @param {object} question @param {AbortSignal} [signal]
   *  @returns {Promise<{depth_m: (number | null)[], low_m?: (number | null)[], high_m?: (number | null)[],
   *    measurements: import("./measuring.js").Estimate[]}>} */
  async measure(id, question, signal) {
    return (await this.post(`/api/sessions/${id}/measure`, question, signal)).json();
  }

  /** @param {string} id @param {object} edit @param {AbortSignal} [signal] */
  async suggest(id, edit, signal) {
    return (await (await this.post(`/api/sessions/${id}/suggest`, edit, signal)).json()).suggestions;
  }

  /** @param {string} id @param {string} name @param {object} body */
  async file(id, name, body) {
    return (await this.post(`/api/sessions/${id}/files/${name}`, body)).blob();
  }

  /** Ask until the session is ready; throws its error if it fails.
   *  @param {Session} session @param {(session: Session) => void} onProgress @param {AbortSignal} [signal]
   *  @returns {Promise<Session>} */
  async untilReady(session, onProgress, signal) {
    while (session.state !== "ready") {
      if (session.state === "failed") throw new ServerError("failed", session.error);
      onProgress(session);
      await new Promise((go) => setTimeout(go, 120));
      signal?.throwIfAborted();
      session = await this.session(session.id, signal);
    }
    return session;
  }
}

/** {header, maps: {name: {shape, values}}}; holes are NaN. @param {ArrayBuffer} buffer @returns {Packed} */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  /** @type {Record<string, MapValues>} */
  const maps = {};
  let start = 4 + length;
  for (const { name, shape, low, high } of header.maps) {
    const count = shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1);
    const steps = new Uint16Array(buffer, start, count);
    const values = new Float32Array(count);
    const size = (high - low) / STEPS;
    for (let i = 0; i < count; i++) values[i] = steps[i] === HOLE ? NaN : low + steps[i] * size;
    maps[name] = { shape, values };
    start += 2 * count;
  }
  return { header, maps };
}
