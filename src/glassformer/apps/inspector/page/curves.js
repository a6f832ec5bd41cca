/**
 * Line charts of numbers against the step.
 *
 * @import { Table } from "./types.js"
 * @import { Scene, Shape } from "./scene.js"
 */

import { compact } from "./text.js";
import { theme } from "./theme.js";

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
  let [low, high] = [Infinity, -Infinity];
  for (const x of values) {
    if (!Number.isFinite(x)) continue;
    low = Math.min(low, x);
    high = Math.max(high, x);
  }
  if (low > high) return [0, 1];
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
    if (points.length === 1) {
      const [step, value] = /** @type {[number, number]} */ (points[0]);
      shapes.push({ type: "circle", x: x(step), y: y(value), r: 2.5, fill: stroke });
    } else if (d) shapes.push({ type: "path", d, stroke, width: 1.8, title: curve.name, ...(curve.dash ? { dash: curve.dash } : {}) });
    const entry = legend.places[i];
    if (entry) {
      const y1 = (title ? 30 : 12) + 16 * entry.line;
      shapes.push({ type: "text", x: entry.x + 20, y: y1 + 2, text: curve.name, size: 11, fill: ink });
      shapes.push({ type: "path", d: `M${entry.x} ${y1 - 2}H${entry.x + 15}`, stroke, width: 2.5, ...(curve.dash ? { dash: curve.dash } : {}) });
    }
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
