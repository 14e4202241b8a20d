// Small helpers for elements.

/** @param {string} id @returns {any} */
export const $ = (id) => document.getElementById(id);

/** @param {string} name @param {string} [kind] @param {string} [words] @returns {any} */
export function element(name, kind = "", words = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (words) made.textContent = words;
  return made;
}

/** Set text only where it differs, so that nothing is laid out or announced again.
 *  @param {Element} node @param {string} words */
export function setText(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

/** @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = element("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Mark one button of a group as chosen.
 *  @param {string} group @param {string} key @param {string} value @param {string} [attribute] */
export function choose(group, key, value, attribute = "aria-checked") {
  for (const button of $(group).children) {
    const chosen = button.dataset[key] === value;
    button.setAttribute(attribute, String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
}

/** One screen at a time: start, working or work. @param {string} screen */
export function show(screen) {
  document.body.dataset.screen = screen;
}

/** @param {HTMLElement} node @param {import("./readings.js").Reading} reading */
export function fillReading(node, { value, range, unsure, notes }) {
  node.classList.toggle("unsure", unsure);
  const first = unsure && range ? element("span", "value", range) : element("span", "value", value);
  const second =
    unsure && range
      ? element("span", "note", `perhaps ${value}; measure near here to know`)
      : range
        ? element("span", "note", `${range}`)
        : null;
  node.replaceChildren(first, ...(second ? [second] : []), ...notes.map((words) => element("span", "note", words)));
}

/** A message as a sentence. @param {string} words */
export const sentence = (words) => `${words[0].toUpperCase()}${words.slice(1).replace(/\.?$/, ".")}`;

/** @param {string} name */
export const stem = (name) => name.replace(/\.[^.]*$/, "");
