// Connects the controls to actions; page.js has the actions.

import { $, element, sentence, setText } from "./dom.js";
import { depthAnchors } from "./geometry.js";
import { Page } from "./page.js";
import { writeAnchorTable } from "./readings.js";
import { Server, isAbort } from "./server.js";
import { newId, replaceAnchors } from "./state.js";
import { OtherTabs, Store, ofBrowser, ofTab } from "./store.js";
import { UNITS } from "./units.js";
import { VIEWS } from "./views.js";

/** @param {string} id @param {string} event @param {(e: any) => void} handler */
const on = (id, event, handler) => $(id).addEventListener(event, handler);

/** @param {Page} page */
function wire(page) {
  const chosen = (/** @type {string} */ input, /** @type {(files: File[]) => void} */ take) =>
    on(input, "change", (e) => {
      const files = [...e.target.files];
      e.target.value = "";
      if (files.length) take(files);
    });
  chosen("camera", (files) => page.workspace.receive(files));
  chosen("file", (files) => page.workspace.receive(files));
  chosen("depth-file", ([file]) => page.workspace.bringDepth(file));
  chosen("project-file", ([file]) => page.workspace.openProjectFile(file));
  chosen("project-file-2", ([file]) => page.workspace.openProjectFile(file));
  on("sample", "click", () => page.workspace.openSample());
  on("new-photo", "click", () => page.workspace.showStart());
  on("back", "click", () => page.workspace.back());
  on("working-cancel", "click", () => page.workspace.cancelOpening());
  on("sample-anchors", "click", () => page.commit(replaceAnchors(page.work, page.shown.sampleAnchors ?? [])));
  on("undo", "click", () => page.undo());
  on("redo", "click", () => page.redo());
  on("clear", "click", () => page.commit(replaceAnchors(page.work, [])));
  on("next", "change", () => {
    page.solving.wantNext();
    page.views.showAll();
    if (matchMedia("(max-width: 820px)").matches) page.showSheet("anchors", false); // the rings are on the photo
  });
  on("toast-close", "click", () => page.clearToast());
  on("busy-cancel", "click", () => page.solving.cancelSolve());
  on("profile-row", "input", (e) => page.tools.profileAt(Number(e.target.value)));
  on("blend", "input", (e) => {
    if (page.project) page.project.settings = { ...page.project.settings, blend: Number(e.target.value) / 100 };
    page.stage.redraw(true);
  });
  on("blend", "change", () => page.workspace.save());
  on("save-project", "click", () => page.workspace.saveProjectFile());
  on("downloads", "click", (e) => {
    const button = e.target.closest("button");
    if (button) page.download(button.dataset.file);
  });
  on("units", "change", (e) => {
    page.unit = e.target.value;
    ofBrowser.set("unit", page.unit);
    page.card.close(false);
    page.views.showAll();
  });
  on("fov", "change", (e) => {
    const wrong = page.tools.takeFov(e.target.value, "given");
    if (wrong) page.showError(wrong);
  });
  $("objects").append(...Object.entries(page.info.objects).map(([name, metres]) => {
    return Object.assign(element("option"), { value: name, label: `${name}, ${metres} m` });
  }));
  on("measure-done", "click", () => page.finish());
  on("measure-cancel", "click", () => page.escape());
  on("zoom-in", "click", () => page.stage.zoom(1.5));
  on("zoom-out", "click", () => page.stage.zoom(1 / 1.5));
  on("zoom-fit", "click", () => page.stage.fit());
  on("cloud-home", "click", () => page.views.cloud?.home());
  wireMethods(page);
  wireGroup("views", (button) => page.tools.setView(button.dataset.view));
  wireGroup("tools", (button) => page.tools.setTool(button.dataset.tool));
  wireGroup("inspect-options", (button) => page.tools.setView(button.dataset.inspect));
  wireGroup("measure-kinds", (button) => page.tools.setMeasureKind(button.dataset.kind));
  wireSheet(page);
  wireDialogs(page);
  wireDivider(page);
  wireDrop(page);
  wireKeys(page);
  wireTheme();
}

/** @param {Page} page */
function wireMethods(page) {
  const option = (/** @type {string} */ name, words = name) =>
    Object.assign(element("option", "", words), { value: name });
  const options = () => {
    const all = page.info.methods.map((/** @type {any} */ m) => option(m.name, m.title)), more = element("optgroup");
    const main = page.info.methods.filter((/** @type {any} */ m) => m.main).length;
    more.label = "More methods";
    more.append(...all.slice(main));
    return [...all.slice(0, main), more];
  };
  $("method").replaceChildren(...options());
  $("compare").replaceChildren(option("", "nothing"), ...options());
  on("method", "change", (e) => {
    page.change({ method: e.target.value });
    page.edited();
  });
  on("compare", "change", (e) => {
    page.change({ compare: e.target.value });
    if (e.target.value && !VIEWS[page.view].compared && page.work.anchors.length) page.tools.setView("depth");
    page.edited();
    page.views.showAll();
  });
}

/** A row of buttons of which one is chosen: click, or arrow keys while one has the focus.
 *  @param {string} id @param {(button: any) => void} take */
function wireGroup(id, take) {
  on(id, "click", (e) => {
    const button = e.target.closest("button");
    if (button && !button.disabled) take(button);
  });
  on(id, "keydown", (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[/** @type {string} */ (e.key)];
    if (!step) return;
    const buttons = [...$(id).children].filter((b) => !b.hidden && !b.disabled);
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    take(next);
    next.focus();
    e.preventDefault();
  });
}

/** @param {Page} page */
function wireSheet(page) {
  const isOpen = () => $("panel").classList.contains("open");
  wireGroup("sheet-tabs", (button) =>
    page.showSheet(button.dataset.sheet, !(isOpen() && $("panel").dataset.tab === button.dataset.sheet)),
  );
  on("sheet-toggle", "click", () => page.showSheet($("panel").dataset.tab, !isOpen()));
}

/** @param {Page} page */
function wireDialogs(page) {
  $("phone").hidden = !page.info.address;
  on("phone", "click", () => {
    $("phone-code").src = "/api/address.svg";
    setText($("phone-address"), page.info.address);
    $("phone-dialog").showModal();
  });
  on("csv-open", "click", () => {
    $("csv-text").value = page.work.anchors.length ? writeAnchorTable(depthAnchors(page.shown.project)) : "";
    setText($("csv-error"), "");
    $("csv-dialog").showModal();
  });
  on("csv-ok", "click", async (e) => {
    e.preventDefault(); // the dialog stays open until the server has read the table
    try {
      const rows = await page.readTable($("csv-text").value);
      if (!$("csv-dialog").open) return;
      $("csv-dialog").close("ok");
      page.commit(replaceAnchors(page.work, rows));
    } catch (error) {
      if (!isAbort(error)) setText($("csv-error"), sentence(/** @type {Error} */ (error).message));
    }
  });
  on("fov-ok", "click", (e) => {
    const wrong = $("fov-value").value.trim()
      ? page.tools.takeFov($("fov-value").value, "given")
      : "Give a number of degrees, or assume 60°.";
    if (!wrong) return;
    e.preventDefault();
    setText($("fov-error"), wrong);
  });
  on("fov-assume", "click", () => page.tools.takeFov("60", "assumed"));
}

/** @param {Page} page */
function wireDivider(page) {
  const divider = $("divider");
  divider.addEventListener("pointerdown", (/** @type {PointerEvent} */ e) => {
    divider.setPointerCapture(e.pointerId);
    e.stopPropagation();
  });
  divider.addEventListener("pointermove", (/** @type {PointerEvent} */ e) => {
    if (!divider.hasPointerCapture(e.pointerId)) return;
    const { x } = page.stage.position(e), { view } = page.stage;
    page.tools.setShare((x - view.x) / (page.session.width * view.scale));
  });
  divider.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => {
    const step = { ArrowLeft: -0.02, ArrowRight: 0.02, Home: -1, End: 1 }[e.key];
    if (!step) return;
    page.tools.setShare(page.tools.share + step);
    e.preventDefault();
  });
}

/** @param {Page} page */
function wireDrop(page) {
  let inside = 0;
  const veil = (/** @type {boolean} */ shown) => ($("drop-veil").hidden = !shown);
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
    const files = [...(e.dataTransfer?.files ?? [])];
    if (files.length) page.workspace.receive(files);
  });
  addEventListener("paste", (e) => {
    if (isTyping(e.target) || document.querySelector("dialog[open]")) return;
    const files = [...(e.clipboardData?.files ?? [])];
    if (files.length) {
      e.preventDefault();
      return void page.workspace.receive(files);
    }
    const text = e.clipboardData?.getData("text") ?? "";
    if (page.loaded && document.body.dataset.screen === "work" && /\d\s*[,;\t ]\s*\d/.test(text))
      page.workspace.takeTable(text);
  });
}

/** Whether keys belong to a text that is being typed; not so for radios, boxes and sliders.
 *  @param {EventTarget | null} target */
function isTyping(target) {
  return (
    target instanceof HTMLTextAreaElement ||
    target instanceof HTMLSelectElement ||
    (target instanceof HTMLInputElement && !["radio", "checkbox", "range", "file"].includes(target.type))
  );
}

/** @param {Page} page */
function wireKeys(page) {
  addEventListener("keydown", (e) => {
    if (document.querySelector("dialog[open]")) return;
    const { screen } = document.body.dataset;
    if (screen === "start" && e.key === "Escape") return page.workspace.back();
    if (isTyping(e.target)) return;
    const key = e.key.toLowerCase(), command = e.ctrlKey || e.metaKey;
    if (command && (key === "z" || key === "y")) {
      if (screen === "working") return;
      e.preventDefault();
      if (key === "y" || e.shiftKey) page.redo();
      else page.undo();
    } else if (command && key === "s" && screen === "work") {
      e.preventDefault();
      page.workspace.saveProjectFile();
    } else if (screen === "work" && !command && !e.altKey && /^[1-5]$/.test(key)) {
      page.tools.setView($("views").children[Number(key) - 1].dataset.view);
    } else if (screen === "work" && key === "enter" && e.target === document.body) page.finish();
    else if (screen === "work" && key === "escape") page.escape();
  });
  addEventListener("beforeunload", (e) => {
    if (page.workspace.writes || (page.loaded && !page.store.lasting && page.work.anchors.length)) e.preventDefault();
  });
}

function wireTheme() {
  const dark = () =>
    (document.documentElement.dataset.theme ??
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  on("theme", "click", () => {
    const theme = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    ofBrowser.set("theme", theme);
  });
}

async function start() {
  const theme = ofBrowser.get("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  const server = new Server(ofTab.get("client") ?? newId());
  ofTab.set("client", server.client);
  const [info, store] = await Promise.all([server.info(), Store.open()]);
  const page = new Page(info, server, store);
  page.workspace.otherTabs = new OtherTabs((id) => page.workspace.holds(id));
  wire(page);
  const unit = ofBrowser.get("unit");
  if (UNITS.includes(/** @type {any} */ (unit))) {
    page.unit = /** @type {any} */ (unit);
    document.querySelector(`#units input[value="${unit}"]`)?.setAttribute("checked", "");
  }
  const tab = ofTab.get("tab") ?? "";
  const copied = Boolean(tab) && (await page.workspace.otherTabs.haveOpen(tab));
  const restored = await page.workspace.restore(tab, copied);
  ofTab.set("tab", page.workspace.tabId);
  if (!restored) await page.workspace.showStart();
  document.body.dataset.ready = "yes"; // tests wait for it: clicks have an effect from here on
  await page.workspace.tidy();
}

start().catch((e) => {
  setText($("toast-text"), e.message);
  document.body.append($("toast"));
  $("toast").hidden = false;
});
