/** Elements of the page: short functions that create and change them. Text is always set as text, never as HTML. */

/** @typedef {string | number | Node | null | undefined | false} Child */
/**
 * @typedef {string | number | boolean | null | undefined | ((event: any) => void) | Record<string, string>} Attribute
 * @typedef {Record<string, Attribute>} Attributes
 * An attribute that begins with "on" is an event listener; `style` is an object of CSS properties; false, null and undefined are left out.
 */

/** @param {string} id @returns {HTMLElement} */
export const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/**
 * Create an element.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, attributes = {}, ...children) {
  return built(document.createElement(tag), attributes, children);
}

/**
 * Create an SVG element.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, attributes = {}, ...children) {
  return built(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** @template {HTMLElement | SVGElement} E @param {E} element @param {Attributes} attributes @param {Child[]} children @returns {E} */
function built(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (typeof value === "object") Object.entries(value).forEach(([property, text]) => element.style.setProperty(property, text));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  fill(element, ...children);
  return element;
}

/**
 * Replace the children of an element.
 * @param {Element} element
 * @param {...Child} children
 */
export function fill(element, ...children) {
  const shown = children.filter((child) => child !== null && child !== undefined && child !== false);
  element.replaceChildren(...shown.map((child) => (typeof child === "number" ? String(child) : child)));
}

/** Replace the children of an element. A button with the focus passes it to the new one at its place. @param {Element} element @param {...Child} children */
export function refill(element, ...children) {
  const focused = [...element.querySelectorAll("button")].findIndex((button) => button === document.activeElement);
  fill(element, ...children);
  if (focused >= 0) element.querySelectorAll("button")[focused]?.focus();
}

/**
 * Create a button.
 * @param {string} label
 * @param {() => void} onclick
 * @param {Attributes} [attributes]
 */
export function button(label, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

/** Return true in a lecture, which shows the open panel alone. */
export const isLecture = () => document.body.classList.contains("is-lecture");

/**
 * Create a selection list. Options are [value, label].
 * @param {string} label
 * @param {[string, string][]} options
 * @param {(value: string) => void} onchange
 */
export function select(label, options, onchange) {
  const list = h("select", { onchange: () => onchange(list.value) });
  const element = h("label", { class: "field" }, h("span", {}, label), list);
  let known = "";
  /** Write the options; the same ones again leave an open list as it is. @param {[string, string][]} next */
  const setOptions = (next) => {
    if (known === (known = JSON.stringify(next))) return;
    fill(list, ...next.map(([value, text]) => h("option", { value }, text)));
  };
  setOptions(options);
  return { element, list, setOptions };
}

/** Return options of a selection list for the numbers 0 to n − 1. @param {number} n */
export const numberOptions = (n) => Array.from({ length: n }, (_, i) => /** @type {[string, string]} */ ([String(i), String(i)]));

/**
 * Write a value into a field, unless it has the focus.
 * @param {HTMLInputElement | HTMLTextAreaElement} input
 * @param {string} value
 */
export function writeField(input, value) {
  if (document.activeElement !== input) input.value = value;
}

/**
 * Create a field for a whole number. A number outside the range becomes its nearest end.
 * @param {string} label
 * @param {{min: number, max: number}} range
 * @param {(value: number) => void} onchange
 */
export function numberField(label, { min, max }, onchange) {
  const input = h("input", { type: "number", min, max: Number.isFinite(max) ? max : null, value: min, onchange: () => {
    const value = Math.max(min, Math.min(max, Math.round(Number(input.value))));
    input.value = String(value);
    onchange(value);
  } });
  return { element: h("label", { class: "field" }, h("span", {}, label), input), write: (/** @type {number} */ value) => writeField(input, String(value)) };
}

/**
 * Create a slider with its number.
 * @param {string} label
 * @param {{min: number, max: number, step: number}} range
 * @param {(value: number) => void} oninput
 * @param {(value: number) => string} [format]
 */
export function slider(label, range, oninput, format = String) {
  const output = h("output");
  const input = h("input", { type: "range", ...range, "aria-label": label, oninput: () => oninput(write(Number(input.value))) });
  /** @param {number} value */
  function write(value) {
    input.value = String(value);
    output.textContent = format(value);
    return value;
  }
  return { element: h("label", { class: "slider" }, h("span", {}, label), input, output), input, write };
}

/**
 * Create the parts of a legend: the smallest number, a bar of colours, the largest number.
 * @param {string[]} colours as CSS
 * @param {string} low
 * @param {string} high
 */
export function legendParts(colours, low, high) {
  const background = `linear-gradient(to right, ${colours.join(", ")})`;
  return [h("span", {}, low), h("span", { class: "legend-bar", style: { background } }), h("span", {}, high)];
}

/**
 * Let a text box grow with its text.
 * @param {HTMLTextAreaElement} area
 * @param {number} [limit] largest height in pixels
 */
export function grow(area, limit = Infinity) {
  area.style.height = "auto";
  if (area.scrollHeight) area.style.height = `${Math.min(limit, area.scrollHeight + 2)}px`;
}

/**
 * Return the listener that sends the text of a text box: with Enter but not Shift+Enter, or only with Ctrl+Enter.
 * @param {"Enter" | "Ctrl+Enter"} keys
 * @param {() => void} send
 */
export function sendsOn(keys, send) {
  return (/** @type {KeyboardEvent} */ event) => {
    const isSent = keys === "Enter" ? !event.shiftKey : event.ctrlKey || event.metaKey;
    if (event.key !== "Enter" || !isSent || event.isComposing) return;
    event.preventDefault();
    send();
  };
}

/**
 * Insert a text at the cursor of a text box.
 * @param {HTMLTextAreaElement} area
 * @param {string} text
 */
export function insertText(area, text) {
  area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
  area.focus();
}

/** @type {WeakMap<HTMLElement, number>} */
const keptWidths = new WeakMap();

/**
 * Keep the largest height that an element has had at its current width, so that the elements below it do not move.
 * @param {HTMLElement} element
 */
export function keepHeight(element) {
  const width = element.offsetWidth;
  if (!width) return;
  if (keptWidths.get(element) !== width) element.style.minHeight = "";
  keptWidths.set(element, width);
  element.style.minHeight = `${element.offsetHeight}px`;
}

/**
 * Create a group of buttons of which one is pressed. Options are [value, label].
 * @param {string} label
 * @param {[string, string][]} options
 * @param {(value: string) => void} onchange
 */
export function choice(label, options, onchange) {
  const element = h("div", { class: "choice", role: "group", "aria-label": label });
  /** @type {Map<string, HTMLButtonElement>} */
  let buttons = new Map();
  /** Write the options; the same ones again keep the focus. @param {[string, string][]} next */
  function setOptions(next) {
    if (next.map(([value]) => value).join() === [...buttons.keys()].join()) return;
    buttons = new Map(next.map(([value, text]) => [value, button(text, () => onchange(value))]));
    fill(element, ...buttons.values());
  }
  /** @param {string} chosen */
  function write(chosen) {
    for (const [value, one] of buttons) one.setAttribute("aria-pressed", String(value === chosen));
  }
  setOptions(options);
  return { element, setOptions, write };
}

/**
 * Move the focus among the elements of a group with the arrow keys, Home and End. Only one of them is in the tab order.
 * @param {HTMLElement} group
 * @param {string} selector of the elements
 * @param {() => number} columns elements per row; 0 for one line
 */
export function arrowKeys(group, selector, columns) {
  const all = () => /** @type {HTMLElement[]} */ ([...group.querySelectorAll(selector)]);
  group.addEventListener("keydown", (event) => {
    const items = all().filter((item) => item.offsetParent !== null);
    const at = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = columns() || 1;
    const right = getComputedStyle(group).direction === "rtl" ? -1 : 1;
    const moves = /** @type {Record<string, number>} */ ({
      ArrowRight: at + right, ArrowLeft: at - right, ArrowDown: at + row, ArrowUp: at - row, Home: 0, End: items.length - 1,
    });
    const next = moves[event.key];
    if (next === undefined) return;
    event.preventDefault();
    items[Math.max(0, Math.min(items.length - 1, next))]?.focus();
  });
  group.addEventListener("focusin", (event) => {
    const items = all();
    if (items.some((item) => item === event.target)) for (const item of items) item.tabIndex = item === event.target ? 0 : -1;
  });
}

/** @type {HTMLElement | null} */
let label = null;

/**
 * Show a text beside a point of the window; an empty text hides it.
 * @param {string} text
 * @param {number} [x]
 * @param {number} [y]
 */
export function tooltip(text, x = 0, y = 0) {
  label ??= document.body.appendChild(h("div", { class: "tooltip", "aria-hidden": "true" }));
  label.hidden = !text;
  if (!text) return;
  label.textContent = text;
  const { width, height } = label.getBoundingClientRect();
  const left = x + 14 + width > innerWidth - 6 ? x - width - 10 : x + 14;
  const top = y + 18 + height > innerHeight - 6 ? y - height - 10 : y + 18;
  label.style.transform = `translate(${Math.round(Math.max(6, left))}px, ${Math.round(Math.max(6, top))}px)`;
}
