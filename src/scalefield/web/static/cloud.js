// The point cloud, in plain WebGL: orbit, pan and zoom, a ground grid, and a layer for labels.

import { ticks } from "./maps.js";

const POINT_VERTEX = `
attribute vec2 place;      // the pixel, −0.5 … 0.5 across the photo's width
attribute float logDepth;
attribute vec3 colour;
uniform float slope;       // width of the view one metre away, in metres
uniform vec3 target;
uniform mat3 turn;
uniform float away_m;
uniform vec2 lens;
uniform float size;
varying vec3 tint;
void main() {
  float z = exp(logDepth);
  vec3 p = turn * (vec3(place * slope * z, z) - target);
  float away = p.z + away_m;
  bool hole = logDepth > 1e8;
  gl_Position = hole || away < 0.02 ? vec4(2.0, 2.0, 2.0, 1.0)
    : vec4(p.x * lens.x, -p.y * lens.y, away - 0.04, away);
  gl_PointSize = clamp(size * z / away, 1.0, 12.0);
  tint = colour;
}`;
const LINE_VERTEX = `
attribute vec3 point;
uniform vec3 target;
uniform mat3 turn;
uniform float away_m;
uniform vec2 lens;
varying vec3 tint;
void main() {
  vec3 p = turn * (point - target);
  float away = p.z + away_m;
  gl_Position = vec4(p.x * lens.x, -p.y * lens.y, away - 0.04, away);
  tint = vec3(0.62, 0.64, 0.68);
}`;
const FRAGMENT = `
precision mediump float;
varying vec3 tint;
void main() { gl_FragColor = vec4(tint, 1.0); }`;

const STEEPEST = 9; // depth over width of a surface from which it counts as an edge between two surfaces

/** Log-depth without holes and without the pixels at depth edges, which would be drawn as stretched surfaces.
 *  @param {Float32Array} logDepth @param {number} width
 *  @param {number} pixelAngle width of a pixel one metre away, in metres
 *  @returns {Float32Array} 1e9 where nothing is drawn */
export function withoutEdges(logDepth, width, pixelAngle) {
  const most = STEEPEST * pixelAngle;
  const kept = Float32Array.from(logDepth, (v) => (Number.isNaN(v) ? 1e9 : v));
  const cut = (/** @type {number} */ i, /** @type {number} */ j) => {
    if (Math.abs(logDepth[i] - logDepth[j]) > most) kept[i] = kept[j] = 1e9;
  };
  for (let i = 0; i < logDepth.length; i++) {
    if ((i + 1) % width) cut(i, i + 1);
    if (i + width < logDepth.length) cut(i, i + width);
  }
  return kept;
}

/** Turn around the vertical axis, then around the horizontal one; columns first, as WebGL has it.
 *  @param {number} yaw @param {number} pitch */
export function rotation(yaw, pitch) {
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
  return [cy, sp * sy, -cp * sy, 0, cp, sp, sy, -sp * cy, cp * cy];
}

/** A round length that takes about a quarter of the width. @param {number} pixelsPerUnit @param {number} width */
export function scaleBarLength(pixelsPerUnit, width) {
  const most = (0.28 * width) / pixelsPerUnit, power = 10 ** Math.floor(Math.log10(most));
  return [5, 2, 1].map((m) => m * power).find((length) => length <= most) ?? power;
}

export class Cloud {
  /** @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} layer
   *  @param {{drawLayer: (context: CanvasRenderingContext2D, cloud: Cloud) => void, picked: (pixel: {u: number, v:
   *  number}) => void,
   *    finish: () => void, escape: () => void}} host */
  constructor(canvas, layer, host) {
    this.canvas = canvas;
    this.layer = layer;
    this.host = host;
    this.size = { width: 0, height: 0 };
    this.gl = canvas.getContext("webgl", { antialias: true, alpha: true, preserveDrawingBuffer: true });
    /** @type {number[]} */
    this.target = [0, 0, 1];
    this.middle = 1;
    this.slope = 0;
    this.frame = 0;
    this.gridLines = 0;
    this.width = 1;
    this.count = 0;
    this.far = 1;
    this.fresh = true;
    this.places = new Float32Array(0);
    /** @type {Float32Array} */
    this.drawn = new Float32Array(0);
    /** @type {any} */
    this.session = null;
    /** @type {any} */
    this.points = null;
    /** @type {any} */
    this.lines = null;
    this.yaw = this.pitch = this.distance = 0;
    this.home();
    if (!this.gl) return;
    const { gl } = this;
    this.points = link(gl, POINT_VERTEX);
    this.lines = link(gl, LINE_VERTEX);
    /** @type {Record<string, WebGLBuffer | null>} */
    this.buffers = Object.fromEntries(["place", "logDepth", "colour", "point"].map((n) => [n, gl.createBuffer()]));
    this.listen();
    new ResizeObserver(([{ contentRect }]) => {
      this.size = { width: contentRect.width, height: contentRect.height };
      this.redraw();
    }).observe(canvas);
    canvas.addEventListener("webglcontextlost", (e) => e.preventDefault());
  }

  get works() {
    return Boolean(this.gl);
  }

  home() {
    [this.yaw, this.pitch, this.distance] = [0.24, 0.14, 1.1];
    this.target = [0, 0, this.middle];
    this.redraw();
  }

  /** Set the positions and colours of the pixels of the photo. @param {any} session
   *  @param {Uint8ClampedArray} pixels */
  setPhoto(session, pixels) {
    const { display_width: w, display_height: h } = session;
    const places = new Float32Array(2 * w * h), colours = new Uint8Array(3 * w * h);
    for (let i = 0, y = 0; y < h; y++) {
      for (let x = 0; x < w; x++, i++) {
        places[2 * i] = (x + 0.5) / w - 0.5;
        places[2 * i + 1] = ((y + 0.5) / h - 0.5) * (h / w);
        for (let c = 0; c < 3; c++) colours[3 * i + c] = pixels[4 * i + c];
      }
    }
    Object.assign(this, { session, width: w, count: w * h, places, fresh: true });
    this.fill("place", places);
    this.fill("colour", colours);
  }

  /** @param {Float32Array} logDepth @param {number} fovDeg @param {{step: number, shown: boolean}} grid */
  setDepth(logDepth, fovDeg, grid) {
    this.slope = 2 * Math.tan((fovDeg * Math.PI) / 360);
    this.drawn = withoutEdges(logDepth, this.width, this.slope / this.width);
    this.fill("logDepth", this.drawn);
    /** @type {number[]} */
    const sample = [];
    for (let i = 0; i < logDepth.length; i += 97) if (Number.isFinite(logDepth[i])) sample.push(logDepth[i]);
    sample.sort((a, b) => a - b);
    const at = (/** @type {number} */ f) => Math.exp(sample[Math.floor(f * (sample.length - 1))] ?? 0);
    this.middle = (at(0.1) + at(0.9)) / 2;
    this.far = at(0.98);
    this.setGrid(grid);
    if (this.fresh) {
      this.fresh = false;
      this.home();
    }
    this.redraw();
  }

  /** A grid on the ground: the height below which almost nothing lies.
   *  @param {{step: number, shown: boolean}} grid step in metres */
  setGrid({ step, shown }) {
    this.gridLines = 0;
    if (!shown) return;
    /** @type {number[]} */
    const heights = [];
    for (let i = 0; i < this.count; i += 97)
      if (this.drawn[i] < 1e8) heights.push(this.places[2 * i + 1] * this.slope * Math.exp(this.drawn[i]));
    heights.sort((a, b) => a - b);
    const y = heights[Math.floor(0.985 * (heights.length - 1))] ?? 1;
    const reach = (this.slope * this.far) / 2,
      xs = [-reach, reach].map((x) => Math.round(x / step) * step),
      zs = [0, Math.ceil(this.far / step) * step];
    const every = step * Math.max(1, Math.ceil((xs[1] - xs[0]) / step / 40));
    const points = [];
    for (let x = xs[0]; x <= xs[1] + 1e-6; x += every) points.push(x, y, zs[0], x, y, zs[1]);
    for (let z = zs[0]; z <= zs[1] + 1e-6; z += every) points.push(xs[0], y, z, xs[1], y, z);
    this.gridLines = points.length / 3;
    this.fill("point", new Float32Array(points));
  }

  /** @param {string} name @param {ArrayBufferView} data */
  fill(name, data) {
    const gl = /** @type {WebGLRenderingContext} */ (this.gl);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.DYNAMIC_DRAW);
  }

  redraw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  /** Lens, turn and distance of the present view. */
  camera() {
    const { width, height } = this.size, lens = 2 / this.slope;
    return {
      turn: rotation(this.yaw, this.pitch), away: this.distance * 1.25 * this.middle,
      lens: [Math.min(lens, ((lens * height) / width) * (4 / 3)), Math.min((lens * width) / height, lens * (4 / 3))],
    };
  }

  /** The position of a point in space on the layer; null behind the viewer.
   *  @param {number[]} point @returns {{x: number, y: number, away: number} | null} */
  project([x, y, z]) {
    const { turn, away, lens } = this.camera(), p = [x - this.target[0], y - this.target[1], z - this.target[2]];
    const q = [0, 1, 2].map((i) => turn[i] * p[0] + turn[3 + i] * p[1] + turn[6 + i] * p[2]);
    const depth = q[2] + away;
    if (depth < 0.02) return null;
    return {
      x: ((q[0] * lens[0]) / depth / 2 + 0.5) * this.size.width,
      y: ((q[1] * lens[1]) / depth / 2 + 0.5) * this.size.height, away: depth,
    };
  }

  draw() {
    const { gl, canvas, size } = this;
    const ratio = Math.min(2, devicePixelRatio),
      w = Math.round(size.width * ratio),
      h = Math.round(size.height * ratio);
    if (!gl || !this.slope || !w || !h) return;
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    gl.viewport(0, 0, w, h);
    gl.enable(gl.DEPTH_TEST);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    const { turn, away, lens } = this.camera();
    const use = (/** @type {WebGLProgram} */ program) => {
      gl.useProgram(program);
      const uniform = (/** @type {string} */ name) => gl.getUniformLocation(program, name);
      gl.uniformMatrix3fv(uniform("turn"), false, turn);
      gl.uniform3f(uniform("target"), this.target[0], this.target[1], this.target[2]);
      gl.uniform1f(uniform("away_m"), away);
      gl.uniform2f(uniform("lens"), lens[0], lens[1]);
      return uniform;
    };
    const attribute = (
      /** @type {WebGLProgram} */ program,
      /** @type {string} */ name,
      /** @type {number} */ length,
      /** @type {number} */ type = gl.FLOAT,
      normal = false,
    ) => {
      const at = gl.getAttribLocation(program, name);
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, length, type, normal, 0, 0);
      return at;
    };
    const uniform = use(this.points);
    const used = [
      attribute(this.points, "place", 2), attribute(this.points, "logDepth", 1),
      attribute(this.points, "colour", 3, gl.UNSIGNED_BYTE, true),
    ];
    gl.uniform1f(uniform("slope"), this.slope);
    gl.uniform1f(uniform("size"), (2.1 * w) / this.width);
    gl.drawArrays(gl.POINTS, 0, this.count);
    for (const at of used) gl.disableVertexAttribArray(at);
    if (this.gridLines) {
      use(this.lines);
      const at = attribute(this.lines, "point", 3);
      gl.drawArrays(gl.LINES, 0, this.gridLines);
      gl.disableVertexAttribArray(at);
    }
    this.drawLayer(ratio);
  }

  /** @param {number} ratio */
  drawLayer(ratio) {
    const { layer, size } = this, w = Math.round(size.width * ratio), h = Math.round(size.height * ratio);
    if (layer.width !== w || layer.height !== h) [layer.width, layer.height] = [w, h];
    const context = /** @type {CanvasRenderingContext2D} */ (layer.getContext("2d"));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
    this.host.drawLayer(context, this);
  }

  /** Screen pixels a metre at the middle of the view. */
  get pixelsPerMetre() {
    const { away, lens } = this.camera();
    return (lens[0] * this.size.width) / 2 / away;
  }

  /** The photo's pixel whose point is drawn nearest to a place on the canvas, the nearest in front
   *  among those within reach. @param {number} x @param {number} y */
  pick(x, y, reach = 10) {
    let best = -1, least = Infinity;
    const { width, session, places, drawn, slope, target, size } = this, { turn, away, lens } = this.camera();
    for (let i = 0; i < this.count; i++) {
      if (drawn[i] > 1e8) continue;
      const z = Math.exp(drawn[i]),
        p = places[2 * i] * slope * z - target[0],
        q = places[2 * i + 1] * slope * z - target[1],
        r = z - target[2];
      const depth = turn[2] * p + turn[5] * q + turn[8] * r + away;
      if (depth < 0.02) continue;
      const px = (((turn[0] * p + turn[3] * q + turn[6] * r) * lens[0]) / depth / 2 + 0.5) * size.width;
      const py = (((turn[1] * p + turn[4] * q + turn[7] * r) * lens[1]) / depth / 2 + 0.5) * size.height;
      const off = Math.hypot(px - x, py - y);
      // What lies in front hides what is behind it, and is then preferred for being nearer.
      const rank = depth * (1 + off / reach);
      if (off <= reach && rank < least) [best, least] = [i, rank];
    }
    if (best < 0) return null;
    const u = Math.floor((((best % width) + 0.5) * session.width) / width),
      v = Math.floor(((Math.floor(best / width) + 0.5) * session.height) / session.display_height);
    return { u, v };
  }

  /** @param {number} dx @param {number} dy */
  turn(dx, dy) {
    this.yaw = Math.max(-3.1, Math.min(3.1, this.yaw - dx));
    this.pitch = Math.max(-1.5, Math.min(1.5, this.pitch + dy));
    this.redraw();
  }

  /** Move the centre of the view by pixels of the screen. @param {number} dx @param {number} dy */
  pan(dx, dy) {
    const turn = rotation(this.yaw, this.pitch), perPixel = 1 / this.pixelsPerMetre;
    for (let i = 0; i < 3; i++) this.target[i] -= (dx * turn[3 * i] + dy * turn[3 * i + 1]) * perPixel;
    this.redraw();
  }

  /** @param {number} factor */
  approach(factor) {
    this.distance = Math.max(0.05, Math.min(6, this.distance / factor));
    this.redraw();
  }

  listen() {
    const { canvas } = this;
    /** @type {Map<number, {x: number, y: number}>} */
    const fingers = new Map();
    let moved = 0;
    const spread = () => {
      const [a, b] = [...fingers.values()];
      return { wide: Math.max(10, Math.hypot(a.x - b.x, a.y - b.y)), x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
    };
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      if (!fingers.size) moved = 0;
      fingers.set(e.pointerId, { x: e.clientX, y: e.clientY });
    });
    canvas.addEventListener("pointermove", (e) => {
      const last = fingers.get(e.pointerId);
      if (!last) return;
      const dx = e.clientX - last.x, dy = e.clientY - last.y, before = fingers.size === 2 ? spread() : null;
      moved += Math.hypot(dx, dy);
      fingers.set(e.pointerId, { x: e.clientX, y: e.clientY });
      if (before) {
        const after = spread();
        this.approach(after.wide / before.wide);
        this.pan(after.x - before.x, after.y - before.y);
      } else if (e.shiftKey || e.buttons & 6) this.pan(dx, dy);
      else if (moved > 4) this.turn(dx / 200, dy / 200);
    });
    canvas.addEventListener("pointerup", (e) => {
      if (fingers.size === 1 && moved < 5 && e.button === 0) {
        const box = canvas.getBoundingClientRect();
        const pixel = this.pick(e.clientX - box.left, e.clientY - box.top, e.pointerType === "touch" ? 18 : 8);
        if (pixel) this.host.picked(pixel);
      }
      fingers.delete(e.pointerId);
    });
    canvas.addEventListener("pointercancel", (e) => fingers.delete(e.pointerId));
    canvas.addEventListener("contextmenu", (e) => e.preventDefault());
    canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      this.approach(Math.exp(-e.deltaY / 500));
    }, { passive: false });
    canvas.addEventListener("dblclick", () => this.host.finish());
    canvas.addEventListener("keydown", (e) => {
      const turns = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (e.ctrlKey || e.metaKey) return;
      if (e.key in turns) {
        const [dx, dy] = turns[/** @type {keyof typeof turns} */ (e.key)];
        if (e.shiftKey) this.pan(-20 * dx, -20 * dy);
        else this.turn(dx / 10, dy / 10);
      } else if (e.key === "+" || e.key === "=") this.approach(1.15);
      else if (e.key === "-") this.approach(1 / 1.15);
      else if (e.key === "0") this.home();
      else if (e.key === "Enter") this.host.finish();
      else if (e.key === "Escape") this.host.escape();
      else return;
      e.preventDefault();
    });
  }
}

/** @param {number} metres farthest depth @param {number} unit_m metres a unit @returns {number} metres between lines */
export function gridStep(metres, unit_m) {
  const marks = ticks(0, metres / unit_m, 12, false);
  return marks.length > 1 ? (marks[1] - marks[0]) * unit_m : unit_m;
}

/** @param {WebGLRenderingContext} gl @param {string} vertex @returns {WebGLProgram} */
function link(gl, vertex) {
  const program = /** @type {WebGLProgram} */ (gl.createProgram());
  for (const [type, source] of /** @type {[number, string][]} */ ([
    [gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, FRAGMENT],
  ])) {
    const shader = /** @type {WebGLShader} */ (gl.createShader(type));
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader) ?? "shader");
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  return program;
}
