// The point cloud, in plain WebGL. A point is a pixel of the display; only log-depth changes.

const VERTEX = `
attribute vec2 place;      // the pixel, −0.5 … 0.5 across the photo's width
attribute float logDepth;
attribute vec3 colour;
uniform float slope;       // width of the view one metre away, in metres
uniform vec3 pivot;
uniform mat3 turn;
uniform float distance_m;
uniform vec2 lens;
uniform float size;
varying vec3 tint;
void main() {
  float z = exp(logDepth);
  vec3 p = turn * (vec3(place * slope * z, z) - pivot);
  float away = p.z + distance_m;
  bool hole = logDepth > 1e8;
  gl_Position = hole || away < 0.02 ? vec4(2.0, 2.0, 2.0, 1.0)
    : vec4(p.x * lens.x, -p.y * lens.y, away - 0.04, away);
  gl_PointSize = clamp(size * z / away, 1.0, 12.0);
  tint = colour;
}`;

const FRAGMENT = `
precision mediump float;
varying vec3 tint;
void main() { gl_FragColor = vec4(tint, 1.0); }`;

export class Cloud {
  constructor(canvas) {
    this.canvas = canvas;
    this.gl = canvas.getContext("webgl", { antialias: true, alpha: true, preserveDrawingBuffer: true });
    this.home();
    if (!this.gl) return;
    this.program = link(this.gl);
    this.buffers = Object.fromEntries(["place", "logDepth", "colour"].map((n) => [n, this.gl.createBuffer()]));
    this.listen();
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("webglcontextlost", (e) => e.preventDefault());
  }

  get works() {
    return Boolean(this.gl);
  }

  home() {
    [this.yaw, this.pitch, this.zoom] = [0.24, 0.14, 1.15];
  }

  /** The photo's pixels: where they are, and their colours. */
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
    this.count = w * h;
    this.width = w;
    this.fill("place", places);
    this.fill("colour", colours);
    this.home();
  }

  setDepth(logDepth, fovDeg) {
    this.slope = 2 * Math.tan((fovDeg * Math.PI) / 360);
    this.fill("logDepth", Float32Array.from(logDepth, (v) => (Number.isNaN(v) ? 1e9 : v)));
    const known = logDepth.filter((_, i) => i % 97 === 0).filter(Number.isFinite).sort();
    const at = (f) => Math.exp(known[Math.floor(f * (known.length - 1))] ?? 0);
    this.middle = (at(0.1) + at(0.9)) / 2;
    this.draw();
  }

  fill(name, data) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[name]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, data, this.gl.DYNAMIC_DRAW);
  }

  draw() {
    const { gl, canvas, program } = this;
    const [w, h] = [canvas.clientWidth, canvas.clientHeight].map((s) => Math.round(s * Math.min(2, devicePixelRatio)));
    if (!gl || !this.slope || !w || !h) return;
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    gl.viewport(0, 0, w, h);
    gl.enable(gl.DEPTH_TEST);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.useProgram(program);
    const attribute = (name, size, type, normal) => {
      const at = gl.getAttribLocation(program, name);
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, size, type, normal, 0, 0);
    };
    attribute("place", 2, gl.FLOAT, false);
    attribute("logDepth", 1, gl.FLOAT, false);
    attribute("colour", 3, gl.UNSIGNED_BYTE, true);
    const uniform = (name) => gl.getUniformLocation(program, name);
    const [cy, sy, cp, sp] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    // Around the vertical axis, then around the horizontal one; columns first.
    gl.uniformMatrix3fv(uniform("turn"), false, [cy, sp * sy, -cp * sy, 0, cp, sp, sy, -sp * cy, cp * cy]);
    gl.uniform3f(uniform("pivot"), 0, 0, this.middle);
    gl.uniform1f(uniform("distance_m"), (1.25 * this.middle) / this.zoom);
    const lens = 2 / this.slope;
    gl.uniform2f(uniform("lens"), Math.min(lens, (lens * h) / w * (4 / 3)), Math.min((lens * w) / h, lens * (4 / 3)));
    gl.uniform1f(uniform("slope"), this.slope);
    gl.uniform1f(uniform("size"), (2.1 * w) / this.width);
    gl.drawArrays(gl.POINTS, 0, this.count);
  }

  turn(dx, dy) {
    this.yaw = Math.max(-3.1, Math.min(3.1, this.yaw - dx));
    this.pitch = Math.max(-1.5, Math.min(1.5, this.pitch + dy));
    requestAnimationFrame(() => this.draw());
  }

  approach(factor) {
    this.zoom = Math.max(0.3, Math.min(8, this.zoom * factor));
    requestAnimationFrame(() => this.draw());
  }

  listen() {
    const { canvas } = this;
    const fingers = new Map();
    const spread = () => {
      const [a, b] = [...fingers.values()];
      return Math.hypot(a[0] - b[0], a[1] - b[1]);
    };
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      fingers.set(e.pointerId, [e.clientX, e.clientY]);
    });
    canvas.addEventListener("pointermove", (e) => {
      if (!fingers.has(e.pointerId)) return;
      const [x, y] = fingers.get(e.pointerId), before = fingers.size === 2 ? spread() : 0;
      fingers.set(e.pointerId, [e.clientX, e.clientY]);
      if (fingers.size === 2) this.approach(spread() / before);
      else this.turn((e.clientX - x) / 200, (e.clientY - y) / 200);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (e) => fingers.delete(e.pointerId));
    canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      this.approach(Math.exp(-e.deltaY / 500));
    }, { passive: false });
    canvas.addEventListener("dblclick", () => {
      this.home();
      this.draw();
    });
    canvas.addEventListener("keydown", (e) => {
      const turns = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
      if (e.key in turns) this.turn(...turns[e.key]);
      else if (e.key === "+" || e.key === "=") this.approach(1.15);
      else if (e.key === "-") this.approach(1 / 1.15);
      else if (e.key === "0") this.home(), this.draw();
      else return;
      e.preventDefault();
    });
  }
}

function link(gl) {
  const program = gl.createProgram();
  for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(type);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  return program;
}
