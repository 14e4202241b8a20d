// Controls to actions; what the actions do stands in page.js.

import { parseCsv, toCsv } from "./anchors.js";
import * as api from "./api.js";
import { Page, show } from "./page.js";
import { element } from "./stage.js";

const $ = (id) => document.getElementById(id);

function wire(page) {
  const on = (id, event, what) => $(id).addEventListener(event, what);
  const choose = (input, take) => on(input, "change", (e) => {
    const [file] = e.target.files;
    e.target.value = "";
    if (file) take(file);
  });
  choose("file", (file) => page.receive(file));
  choose("depth-file", (file) => page.bringDepth(file));
  on("sample", "click", () => page.open(() => api.createSample(page.info.samples[0])));
  on("new-photo", "click", () => show("start"));
  on("sample-anchors", "click", () => page.anchors.replaceAll(page.sampleAnchors.map((a) => ({ ...a }))));
  on("undo", "click", () => page.anchors.undo());
  on("redo", "click", () => page.anchors.redo());
  on("clear", "click", () => page.anchors.replaceAll([]));
  on("next", "change", () => {
    page.wantNext();
    page.showAll();
  });
  on("toast-close", "click", () => ($("toast").hidden = true));
  on("compare-slider", "input", () => page.showSplit());
  on("profile-row", "input", (e) => page.profileAt(Number(e.target.value)));
  on("downloads", "click", (e) => {
    const button = e.target.closest("button");
    if (button) page.download(button.dataset.file);
  });
  on("units", "change", (e) => {
    page.unit = e.target.value;
    remember("unit", page.unit);
    page.stage.close(false);
    if (page.session) page.showAll();
  });
  on("fov", "change", (e) => {
    const value = Number(e.target.value.replace(",", ".").replace("°", ""));
    const good = e.target.value.trim() === "" ? null : value;
    if (good !== null && !(good >= 1 && good <= 170)) page.complain(`The field of view must be 1 … 170 degrees, found “${e.target.value.slice(0, 20)}”.`);
    else page.fovDeg = good;
    page.showCamera();
    page.showAll();
  });
  wireMethods(page);
  wireTabs("views", (button) => page.setView(button.dataset.view));
  wireTabs("tools", (button) => page.setTool(button.dataset.tool));
  wireCsv(page);
  wireDrop(page);
  wireKeys(page);
  wireTheme();
}

function wireMethods(page) {
  const option = (name, words = name) => Object.assign(element("option", "", words), { value: name });
  $("method").replaceChildren(...page.info.methods.map((m) => option(m.name)));
  $("compare").replaceChildren(option("", "nothing"), ...page.info.methods.map((m) => option(m.name)));
  $("method").value = page.method;
  $("method").addEventListener("change", (e) => {
    page.method = e.target.value;
    page.edited();
  });
  $("compare").addEventListener("change", (e) => {
    page.compareWith = e.target.value;
    page.other = null;
    if (page.compareWith && !["depth", "field"].includes(page.view) && page.anchors.items.length) page.setView("depth");
    page.edited();
  });
}

/** A row of buttons of which one is chosen: click, or arrow keys while one has the focus. */
function wireTabs(id, take) {
  $(id).addEventListener("click", (e) => {
    const button = e.target.closest("button");
    if (button) take(button);
  });
  $(id).addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    const buttons = [...$(id).children].filter((b) => !b.hidden);
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    take(next);
    next.focus();
    e.preventDefault();
  });
}

function wireCsv(page) {
  $("csv-open").addEventListener("click", () => {
    $("csv-text").value = page.anchors.items.length ? toCsv(page.anchors.items) : "";
    $("csv-error").textContent = "";
    $("csv-dialog").showModal();
  });
  $("csv-ok").addEventListener("click", (e) => {
    try {
      page.anchors.replaceAll(parseCsv($("csv-text").value, page.session.width, page.session.height));
    } catch (error) {
      e.preventDefault();
      $("csv-error").textContent = error.message;
    }
  });
  document.addEventListener("paste", (e) => {
    if (!page.session || e.target.matches("input, textarea")) return;
    const text = e.clipboardData.getData("text");
    if (!/\d[\s]*[,;\t]/.test(text)) return;
    try {
      page.anchors.replaceAll(parseCsv(text, page.session.width, page.session.height));
    } catch (error) {
      page.complain(error.message);
    }
  });
}

function wireDrop(page) {
  let inside = 0;
  const veil = (shown) => ($("drop-veil").hidden = !shown);
  addEventListener("dragenter", (e) => {
    e.preventDefault();
    inside++;
    veil(true);
  });
  addEventListener("dragleave", () => veil(--inside > 0));
  addEventListener("dragover", (e) => e.preventDefault());
  addEventListener("drop", (e) => {
    e.preventDefault();
    inside = 0;
    veil(false);
    const [file] = e.dataTransfer.files;
    if (file) page.receive(file);
  });
}

function wireKeys(page) {
  addEventListener("keydown", (e) => {
    if (!page.session || document.body.dataset.screen !== "work" || e.target.matches("input, textarea, select")) return;
    if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "z") {
      e.preventDefault();
      if (e.shiftKey) page.anchors.redo();
      else page.anchors.undo();
    } else if (!e.ctrlKey && !e.metaKey && !e.altKey && /^[1-9]$/.test(e.key)) {
      const tab = [...$("views").children].filter((t) => !t.hidden)[Number(e.key) - 1];
      if (tab) page.setView(tab.dataset.view);
    }
  });
}

function wireTheme() {
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const saved = recall("theme");
  if (saved) document.documentElement.dataset.theme = saved;
  $("theme").addEventListener("click", () => {
    const theme = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    remember("theme", theme);
  });
}

// Private windows may refuse storage; then a choice lasts as long as the page.
function remember(key, value) {
  try {
    localStorage.setItem(`scalefield.${key}`, value);
  } catch {
    /* nothing to do */
  }
}

function recall(key) {
  try {
    return localStorage.getItem(`scalefield.${key}`);
  } catch {
    return null;
  }
}

try {
  const page = new Page(await api.info());
  wire(page);
  const unit = recall("unit");
  if (["m", "cm", "ft"].includes(unit)) {
    page.unit = unit;
    document.querySelector(`#units input[value="${unit}"]`).checked = true;
  }
  document.body.dataset.ready = "yes"; // from here on a click does something
} catch (e) {
  $("toast-text").textContent = e.message;
  $("toast").hidden = false;
}
