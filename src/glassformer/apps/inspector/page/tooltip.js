/** One small label beside the pointer. */

import { h } from "./dom.js";

/** @type {HTMLElement | null} */
let label = null;

/**
 * Show a text beside a point of the window; an empty text hides it.
 * @param {string} text
 * @param {number} [x]
 * @param {number} [y]
 */
export function tooltip(text, x = 0, y = 0) {
  if (!label) {
    label = h("div", { class: "tooltip", "aria-hidden": "true" });
    document.body.append(label);
  }
  label.hidden = !text;
  if (!text) return;
  label.textContent = text;
  const { width, height } = label.getBoundingClientRect();
  const left = x + 14 + width > innerWidth - 6 ? x - width - 10 : x + 14;
  const top = y + 18 + height > innerHeight - 6 ? y - height - 10 : y + 18;
  label.style.transform = `translate(${Math.round(Math.max(6, left))}px, ${Math.round(Math.max(6, top))}px)`;
}
