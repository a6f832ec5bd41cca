/**
 * Bar charts, and line charts of numbers against the step.
 *
 * @import { Scene, Shape } from "./scene.js"
 * @import { Table } from "./types.js"
 */

import { h } from "./dom.js";
import { compact, shortened, visible } from "./text.js";
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
    const part = (/** @type {string} */ name, /** @type {number} */ share) =>
      h("span", { class: name, style: { width: `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%` } });
    const content = [
      h("span", { class: "bar-label", dir: "auto" }, visible(bar.label)),
      h("span", { class: "bar-track" }, part("bar-value", bar.value), bar.before === undefined ? null : part("bar-before", bar.before)),
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

/** Count numbers in equal parts of their range. @param {number[]} values */
export function binned(values) {
  const [low, high] = extent(values);
  const counts = Array.from({ length: Math.min(24, Math.max(4, Math.ceil(Math.sqrt(values.length)))) }, () => 0);
  for (const value of values) {
    const i = Math.min(counts.length - 1, Math.floor((counts.length * (value - low)) / (high - low)));
    counts[i] = (counts[i] ?? 0) + 1;
  }
  return { low, high, counts };
}

/**
 * Return the scene of a histogram of numbers, with lines at some numbers.
 * @param {number[]} values
 * @param {Record<string, number>} marks
 * @returns {Scene}
 */
export function histogramScene(values, marks) {
  const { ink, faint, line, accent, paper } = theme();
  const [{ low, high, counts }, width, bottom] = [binned(values), 340, 128];
  const n = counts.length;
  const most = Math.max(...counts);
  const x = (/** @type {number} */ value) => 30 + ((width - 60) * (value - low)) / (high - low);
  const wide = (width - 60) / n;
  /** @type {Shape[]} */
  const shapes = counts.map((count, i) => ({ type: "rect", x: 30 + i * wide + 0.5, y: bottom - (88 * count) / most, width: wide - 1, height: (88 * count) / most, fill: accent, title: `${count} of ${values.length}: from ${compact(low + (i * (high - low)) / n)} to ${compact(low + ((i + 1) * (high - low)) / n)}` }));
  shapes.push({ type: "path", d: `M30 ${bottom}H${width - 30}`, stroke: line });
  for (const value of axisTicks(low, high, 4)) shapes.push({ type: "text", x: x(value), y: bottom + 16, text: compact(value), size: 11, fill: faint, anchor: "middle" });
  for (const [i, [name, value]] of Object.entries(marks).entries()) {
    shapes.push({ type: "path", d: `M${x(value)} ${24 + 14 * i}V${bottom}`, stroke: ink, dash: "3 3" });
    shapes.push({ type: "text", x: x(value), y: 20 + 14 * i, text: name, size: 11, fill: ink, anchor: x(value) > width / 2 ? "end" : "start" });
  }
  return { width, height: bottom + 24, background: paper, shapes };
}

/** @typedef {{name: string, points: [number, number][], dash?: string}} Curve */

/**
 * Return about `n` round numbers in a range.
 * @param {number} low
 * @param {number} high
 * @param {number} n
 * @returns {number[]}
 */
export function ticks(low, high, n) {
  if (!(high > low)) return [low];
  const rough = (high - low) / n;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = (/** @type {number[]} */ ([1, 2, 5, 10]).find((factor) => factor * power >= rough) ?? 10) * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/**
 * Return about `n` round numbers in a range, and two or more if the range is not empty.
 * @param {number} low
 * @param {number} high
 * @param {number} n
 * @returns {number[]}
 */
export function axisTicks(low, high, n) {
  let found = ticks(low, high, n);
  for (let more = n + 1; found.length < 2 && more < n + 20; more++) found = ticks(low, high, more);
  return found;
}

/** @param {number[]} values @returns {[number, number]} */
function extent(values) {
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return [0, 1];
  const [low, high] = [finite.reduce((a, b) => Math.min(a, b)), finite.reduce((a, b) => Math.max(a, b))];
  return low === high ? [low - Math.abs(low) * 0.1 - 1e-9, high + Math.abs(high) * 0.1 + 1e-9] : [low, high];
}

/**
 * Return the scene of some curves with axes and a legend.
 * @param {Curve[]} curves
 * @param {{width: number, height: number, title?: string}} size
 * @returns {Scene}
 */
export function curvesScene(curves, { width, height, title }) {
  const { ink, faint, line, accent, second, paper } = theme();
  const colours = [accent, second, faint, ink];
  const legend = legendPlaces(curves.length < 2 ? [] : curves.map(({ name }) => name), width);
  const [left, right, top, bottom] = [46, 12, (title ? 20 : 6) + 16 * legend.lines + 4, 24];
  const [x0, x1] = extent(curves.flatMap(({ points }) => points.map(([step]) => step)));
  const [y0, y1] = extent(curves.flatMap(({ points }) => points.map(([, value]) => value)));
  const x = (/** @type {number} */ step) => left + ((step - x0) / (x1 - x0)) * (width - left - right);
  const y = (/** @type {number} */ value) => height - bottom - ((value - y0) / (y1 - y0)) * (height - top - bottom);
  /** @type {Shape[]} */
  const shapes = [];
  if (title) shapes.push({ type: "text", x: 4, y: 14, text: title, size: 12, fill: ink, bold: true });
  for (const value of axisTicks(y0, y1, Math.max(2, height / 45))) {
    shapes.push({ type: "path", d: `M${left} ${y(value)}H${width - right}`, stroke: line });
    shapes.push({ type: "text", x: left - 6, y: y(value) + 4, text: compact(value), size: 10.5, fill: faint, anchor: "end" });
  }
  for (const step of axisTicks(x0, x1, Math.max(2, width / 90))) {
    shapes.push({ type: "text", x: x(step), y: height - 8, text: compact(step), size: 10.5, fill: faint, anchor: "middle" });
  }
  for (const [i, curve] of curves.entries()) {
    const stroke = /** @type {string} */ (colours[i % colours.length]);
    const points = curve.points.filter(([, value]) => Number.isFinite(value));
    const d = points.map(([step, value], j) => `${j ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const dash = curve.dash ? { dash: curve.dash } : {};
    if (points.length > 1) shapes.push({ type: "path", d, stroke, width: 1.8, title: curve.name, ...dash });
    else for (const [step, value] of points) shapes.push({ type: "circle", x: x(step), y: y(value), r: 2.5, fill: stroke });
    const entry = legend.places[i];
    if (!entry) continue;
    const y1 = (title ? 30 : 12) + 16 * entry.line;
    shapes.push({ type: "text", x: entry.x + 20, y: y1 + 2, text: curve.name, size: 11, fill: ink });
    shapes.push({ type: "path", d: `M${entry.x} ${y1 - 2}H${entry.x + 15}`, stroke, width: 2.5, ...dash });
  }
  return { width, height, background: paper, shapes };
}

/**
 * Return the positions of the names of a legend, line by line.
 * @param {string[]} names
 * @param {number} width
 */
function legendPlaces(names, width) {
  let [x, line] = [46, 0];
  const places = names.map((name) => {
    const size = 34 + 6.2 * name.length;
    if (x + size > width && x > 46) [x, line] = [46, line + 1];
    const place = { x, line };
    x += size;
    return place;
  });
  return { places, lines: names.length ? line + 1 : 0 };
}

/**
 * Return the numbers of curves: one row per step.
 * @param {Curve[]} curves
 * @returns {Table}
 */
export function curvesTable(curves) {
  const steps = [...new Set(curves.flatMap(({ points }) => points.map(([step]) => step)))].sort((a, b) => a - b);
  const values = curves.map(({ points }) => new Map(points));
  return {
    header: ["step", ...curves.map(({ name }) => name)],
    rows: steps.map((step) => [step, ...values.map((known) => known.get(step) ?? null)]),
  };
}
