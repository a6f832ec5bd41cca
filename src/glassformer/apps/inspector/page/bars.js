/**
 * Bar charts.
 *
 * @import { Scene, Shape } from "./scene.js"
 */

import { h } from "./dom.js";
import { shortened, visible } from "./text.js";
import { theme } from "./theme.js";

/**
 * @typedef {{
 *   label: string, value: number, before?: number, text: string, title?: string, is_marked?: boolean,
 *   onclick?: () => void,
 * }} Bar
 * `value` and `before` are fractions of the width (0 to 1). `before` is drawn as an outline.
 */

/**
 * Return a list of bars.
 * @param {Bar[]} bars
 * @returns {HTMLElement}
 */
export function barList(bars) {
  return h("ul", { class: "bars" }, ...bars.map((bar) => {
    const inner = h("span", { class: "bar-value" });
    inner.style.width = `${(100 * Math.min(1, Math.max(0, bar.value))).toFixed(2)}%`;
    const before = bar.before === undefined ? null : h("span", { class: "bar-before" });
    if (before) before.style.width = `${(100 * Math.min(1, bar.before ?? 0)).toFixed(2)}%`;
    const content = [
      h("span", { class: "bar-label", dir: "auto" }, visible(bar.label)),
      h("span", { class: "bar-track" }, inner, before),
      h("span", { class: "bar-text" }, bar.text),
    ];
    const attributes = { class: `bar${bar.is_marked ? " is-marked" : ""}${bar.value <= 0 ? " is-excluded" : ""}`, title: bar.title };
    return h("li", {}, bar.onclick
      ? h("button", { type: "button", onclick: bar.onclick, ...attributes }, ...content)
      : h("div", attributes, ...content));
  }));
}

/**
 * Return the scene of bars.
 * @param {Bar[]} bars
 * @param {string} title
 * @returns {Scene}
 */
export function barsScene(bars, title) {
  const { ink, faint, line, accent, paper } = theme();
  /** @type {Shape[]} */
  const shapes = [{ type: "text", x: 10, y: 20, text: title, size: 13, fill: ink, bold: true }];
  const [left, width] = [130, 260];
  for (const [i, bar] of bars.entries()) {
    const y = 36 + 22 * i;
    shapes.push({ type: "text", x: left - 8, y: y + 12, text: shortened(bar.label, 16), fill: ink, anchor: "end", mono: true });
    shapes.push({ type: "rect", x: left, y, width, height: 16, rx: 2, fill: line, opacity: 0.4 });
    shapes.push({ type: "rect", x: left, y, width: width * Math.max(0, bar.value), height: 16, rx: 2, fill: accent });
    if (bar.before !== undefined) shapes.push({ type: "rect", x: left, y, width: width * bar.before, height: 16, stroke: faint });
    shapes.push({ type: "text", x: left + width + 8, y: y + 12, text: bar.text, fill: ink });
  }
  return { width: left + width + 90, height: 46 + 22 * bars.length, background: paper, shapes };
}
