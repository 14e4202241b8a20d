// The server, and how maps arrive from it (see wire.py).

const HOLE = 65535;
const STEPS = 65534;

/** An answer, or an Error whose message is the server's sentence. */
async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Error("The server does not answer. Is `scalefield web` still running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Error(body.error || `The server answered ${response.status}.`);
}

const json = async (path, options) => (await ask(path, options)).json();
const post = (path, body) => ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
const named = (name) => new URLSearchParams({ name }).toString();

export const info = () => json("/api");
export const createSession = (file) => json(`/api/sessions?${named(file.name)}`, { method: "POST", body: file });
export const createSample = (name) => json(`/api/samples/${encodeURIComponent(name)}`, { method: "POST" });
export const getSession = (id) => json(`/api/sessions/${id}`);
export const dropSession = (id) => fetch(`/api/sessions/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
export const photoUrl = (id) => `/api/sessions/${id}/photo.jpg`;
export const bringDepth = (id, file, kind, resize) =>
  json(`/api/sessions/${id}/depth?${named(file.name)}&kind=${kind}&resize=${resize}`, { method: "PUT", body: file });
export const getMaps = async (id) => unpack(await (await ask(`/api/sessions/${id}/maps`)).arrayBuffer());
export const getBasis = async (id, method) => unpack(await (await ask(`/api/sessions/${id}/basis?method=${method}`)).arrayBuffer());
export const recover = async (id, anchors, method) => unpack(await (await post(`/api/sessions/${id}/recover`, { anchors, method })).arrayBuffer());
export const suggest = async (id, anchors) => (await (await post(`/api/sessions/${id}/suggest`, { anchors })).json()).suggestions;
export const getFile = async (id, name, body) => (await post(`/api/sessions/${id}/files/${name}`, body)).blob();

/** {header, maps: {name: {shape, values: Float32Array}}}; holes are NaN. */
function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const maps = {};
  let start = 4 + length;
  for (const { name, shape, low, high } of header.maps) {
    const count = shape.reduce((a, b) => a * b, 1);
    const steps = new Uint16Array(buffer, start, count);
    const values = new Float32Array(count);
    const size = (high - low) / STEPS;
    for (let i = 0; i < count; i++) values[i] = steps[i] === HOLE ? NaN : low + steps[i] * size;
    maps[name] = { shape, values };
    start += 2 * count;
  }
  return { header, maps };
}

/** Runs `work` with the newest wish only: while one is under way, later ones replace each other. */
export class LatestOnly {
  constructor(work) {
    this.work = work;
    this.running = false;
    this.wanted = null;
  }

  async request(wish) {
    this.wanted = wish;
    if (this.running) return;
    this.running = true;
    while (this.wanted !== null) {
      const next = this.wanted;
      this.wanted = null;
      await this.work(next);
    }
    this.running = false;
  }
}
