/**
 * Lines between tokens; the width of a line is a weight.
 *
 * @import { Side } from "./types.js"
 * @import { Scene, Shape } from "./scene.js"
 */

import { visualOrder } from "./direction.js";
import { shortened } from "./text.js";
import { theme } from "./theme.js";

/**
 * @typedef {{
 *   rows: number, columns: number, values: ArrayLike<number>, row_labels: string[], column_labels: string[],
 *   row_side: Side, column_side: Side, first_row: number,
 * }} Weights
 */

/** Explanation of `alignmentScene` for the user. */
export const ALIGNMENT_ABOUT = "Each target token is linked to the source tokens it attends to. The width of a line is the weight.";
const MAX_LINES = 4000;
const STEP = 22;

/**
 * Return the part of `length` positions that is drawn: all, or `size` around a centre.
 * @param {number} length
 * @param {number} centre
 * @param {number} size
 * @returns {[number, number]}
 */
export function windowAround(length, centre, size) {
  if (length <= size) return [0, length];
  const first = Math.max(0, Math.min(length - size, Math.round(centre - size / 2)));
  return [first, first + size];
}

/**
 * Return the lines above a weight, the strongest ones if there are too many.
 * @param {Weights} weights
 * @param {{rows: [number, number], columns: [number, number], least: number, row?: number, column?: number}} part
 * @returns {{row: number, column: number, weight: number}[]}
 */
export function strongest(weights, { rows, columns, least, row, column }) {
  const found = [];
  for (let i = rows[0]; i < rows[1]; i++) {
    if (row !== undefined && row >= 0 && i !== row) continue;
    for (let j = columns[0]; j < columns[1]; j++) {
      if (column !== undefined && column >= 0 && j !== column) continue;
      const weight = weights.values[i * weights.columns + j] ?? 0;
      if (weight >= least) found.push({ row: i, column: j, weight });
    }
  }
  return found.sort((a, b) => b.weight - a.weight).slice(0, MAX_LINES);
}

/**
 * Return two columns of tokens with lines: queries on the left, keys on the right.
 * @param {Weights} weights
 * @param {{width: number, rows: [number, number], columns: [number, number], lines: {row: number, column: number, weight: number}[]}} part
 * @returns {Scene}
 */
export function columnScene(weights, { width, rows, columns, lines }) {
  const { ink, faint, accent, paper } = theme();
  const label = 110;
  const [left, right] = [label + 6, width - label - 6];
  const y = (/** @type {number} */ i) => 30 + i * STEP;
  /** @type {Shape[]} */
  const shapes = [
    { type: "text", x: label, y: 12, text: "query", size: 11, fill: faint, anchor: "end" },
    { type: "text", x: width - label, y: 12, text: "key", size: 11, fill: faint },
  ];
  for (const { row, column, weight } of lines) {
    const [from, to] = [y(row - rows[0]) + 4, y(column - columns[0]) + 4];
    const middle = (left + right) / 2;
    shapes.push({
      type: "path", d: `M${left} ${from}C${middle} ${from} ${middle} ${to} ${right} ${to}`, stroke: accent,
      width: 0.5 + 5 * weight, opacity: 0.15 + 0.75 * weight, title: `weight ${weight.toFixed(3)}`,
      place: { side: weights.row_side, index: row + weights.first_row }, across: { side: weights.column_side, index: column },
    });
  }
  for (let i = rows[0]; i < rows[1]; i++) {
    shapes.push({
      type: "text", x: label, y: y(i - rows[0]) + 8, text: shortened(weights.row_labels[i] ?? "", 14), fill: ink, anchor: "end", mono: true,
      place: { side: weights.row_side, index: i + weights.first_row },
    });
  }
  for (let j = columns[0]; j < columns[1]; j++) {
    shapes.push({
      type: "text", x: width - label, y: y(j - columns[0]) + 8, text: shortened(weights.column_labels[j] ?? "", 14), fill: ink, mono: true,
      place: { side: weights.column_side, index: j },
    });
  }
  const height = y(Math.max(rows[1] - rows[0], columns[1] - columns[0]));
  return { width, height, background: paper, shapes };
}

/**
 * Return two lines of tokens with lines between them: keys above, queries below.
 * @param {Weights} weights
 * @param {{rows: [number, number], columns: [number, number], lines: {row: number, column: number, weight: number}[], width?: number}} part
 * @returns {Scene}
 */
export function alignmentScene(weights, { rows, columns, lines, width }) {
  const { ink, faint, accent, paper } = theme();
  const above = linePositions(weights.column_labels.slice(...columns));
  const below = linePositions(weights.row_labels.slice(...rows));
  const full = Math.max(above.width, below.width, width ?? 0);
  const [top, bottom] = [44, 168];
  const shift = (/** @type {{width: number}} */ line) => (full - line.width) / 2;
  /** @type {Shape[]} */
  const shapes = [
    { type: "text", x: full / 2, y: 12, text: "source (keys)", size: 11, fill: faint, anchor: "middle" },
    { type: "text", x: full / 2, y: bottom + 46, text: "target (queries)", size: 11, fill: faint, anchor: "middle" },
  ];
  for (const { row, column, weight } of lines) {
    const [from, to] = [shift(below) + (below.centres[row - rows[0]] ?? 0), shift(above) + (above.centres[column - columns[0]] ?? 0)];
    const middle = (top + bottom) / 2;
    shapes.push({
      type: "path", d: `M${from} ${bottom}C${from} ${middle} ${to} ${middle} ${to} ${top}`, stroke: accent,
      width: 0.5 + 6 * weight, opacity: 0.12 + 0.75 * weight, title: `weight ${weight.toFixed(3)}`,
      place: { side: weights.row_side, index: row + weights.first_row }, across: { side: weights.column_side, index: column },
    });
  }
  above.centres.forEach((centre, i) => shapes.push({
    type: "text", x: shift(above) + centre, y: top - 10, text: above.texts[i] ?? "", fill: ink, anchor: "middle", mono: true, size: 13,
    place: { side: weights.column_side, index: columns[0] + i },
  }));
  below.centres.forEach((centre, i) => shapes.push({
    type: "text", x: shift(below) + centre, y: bottom + 20, text: below.texts[i] ?? "", fill: ink, anchor: "middle", mono: true, size: 13,
    place: { side: weights.row_side, index: rows[0] + i + weights.first_row },
  }));
  return { width: full, height: bottom + 56, background: paper, shapes };
}

/** Return the texts of one line, and the positions of their centres in visual order. @param {string[]} labels */
function linePositions(labels) {
  let x = 16;
  const texts = labels.map((label) => shortened(label, 18));
  /** @type {number[]} */
  const centres = [];
  for (const i of visualOrder(labels)) {
    const width = [...(texts[i] ?? "")].length * 7.9 + 14;
    x += width;
    centres[i] = x - width / 2;
  }
  return { texts, centres, width: x + 16 };
}
