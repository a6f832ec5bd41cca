/**
 * Lines between tokens, as wide as the attention weights: of one attention in two columns or two rows, or of all layers.
 *
 * @import { Scene, Shape } from "./scene.js"
 * @import { Bytes } from "./source.js"
 * @import { Side } from "./types.js"
 */

import { css, oklch } from "./colours.js";
import { thumbnailOf } from "./grid.js";
import { visualOrder } from "./letters.js";
import { shortened, visible } from "./text.js";
import { theme } from "./theme.js";

/**
 * @typedef {{
 *   rows: number, columns: number, values: ArrayLike<number>, row_labels: string[], column_labels: string[],
 *   row_side: Side, column_side: Side, first_row: number,
 * }} Weights
 * @typedef {{row: number, column: number, weight: number}} Link
 */

/** Explanation of `alignmentScene` for the user. */
export const ALIGNMENT_ABOUT = "Each target token is linked to the source tokens it attends to. The width of a line is the weight.";
/** Largest number of tokens of an alignment that are drawn. */
export const ALIGNED = 60;
/** Largest number of lines of one attention. */
const MOST = 4000;
const ROW_STEP = 22;

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
 * @param {{columns: number, values: ArrayLike<number>}} weights
 * @param {{rows: [number, number], columns: [number, number], least: number, row?: number, column?: number}} part
 * @returns {Link[]}
 */
export function strongest(weights, { rows, columns, least, row = -1, column = -1 }) {
  const found = [];
  for (let i = rows[0]; i < rows[1]; i++) {
    if (row >= 0 && i !== row) continue;
    for (let j = columns[0]; j < columns[1]; j++) {
      if (column >= 0 && j !== column) continue;
      const weight = weights.values[i * weights.columns + j] ?? 0;
      if (weight >= least) found.push({ row: i, column: j, weight });
    }
  }
  return found.sort((a, b) => b.weight - a.weight).slice(0, MOST);
}

/** Return the places of the tokens of a line. @param {Weights} weights @param {Link} line */
const placesOf = ({ row_side, column_side, first_row }, { row, column }) =>
  ({ place: { side: row_side, index: row + first_row }, across: { side: column_side, index: column } });

/** Return a curve between two points that leaves both in the direction of x. @param {[number, number]} from @param {[number, number]} to */
export function curve([x0, y0], [x1, y1]) {
  return `M${x0} ${y0}C${(x0 + x1) / 2} ${y0} ${(x0 + x1) / 2} ${y1} ${x1} ${y1}`;
}

/**
 * Return two columns of tokens with lines: queries on the left, keys on the right.
 * @param {Weights} weights
 * @param {{width: number, rows: [number, number], columns: [number, number], lines: Link[]}} part
 * @returns {Scene}
 */
export function columnScene(weights, { width, rows, columns, lines }) {
  const { ink, faint, accent, paper } = theme();
  const label = 110;
  const [left, right] = [label + 6, width - label - 6];
  const y = (/** @type {number} */ i) => 30 + i * ROW_STEP;
  /** @type {Shape[]} */
  const shapes = [
    { type: "text", x: label, y: 12, text: "query", size: 11, fill: faint, anchor: "end" },
    { type: "text", x: width - label, y: 12, text: "key", size: 11, fill: faint },
  ];
  for (const one of lines) {
    shapes.push({
      type: "path", d: curve([left, y(one.row - rows[0]) + 4], [right, y(one.column - columns[0]) + 4]), stroke: accent, ...placesOf(weights, one),
      width: 0.5 + 5 * one.weight, opacity: 0.15 + 0.75 * one.weight, title: `weight ${one.weight.toFixed(3)}`,
    });
  }
  weights.row_labels.slice(...rows).forEach((text, i) => shapes.push({
    type: "text", x: label, y: y(i) + 8, text: shortened(text, 14), fill: ink, anchor: "end", mono: true,
    place: { side: weights.row_side, index: rows[0] + i + weights.first_row },
  }));
  weights.column_labels.slice(...columns).forEach((text, j) => shapes.push({
    type: "text", x: width - label, y: y(j) + 8, text: shortened(text, 14), fill: ink, mono: true, place: { side: weights.column_side, index: columns[0] + j },
  }));
  const height = y(Math.max(rows[1] - rows[0], columns[1] - columns[0]));
  return { width, height, background: paper, shapes };
}

/**
 * Return two lines of tokens with lines between them: keys above, queries below. Of a long text, `ALIGNED` tokens are drawn.
 * @param {Weights} weights
 * @param {number} position a target token that is drawn
 * @param {number} [width] the least width
 * @returns {Scene}
 */
export function alignmentScene(weights, position, width = 0) {
  const rows = windowAround(weights.rows, position, ALIGNED);
  const columns = windowAround(weights.columns, (position * weights.columns) / Math.max(1, weights.rows), ALIGNED);
  const lines = strongest(weights, { rows, columns, least: 0.03 });
  const { ink, faint, accent, paper } = theme();
  const above = linePositions(weights.column_labels.slice(...columns));
  const below = linePositions(weights.row_labels.slice(...rows));
  const full = Math.max(above.width, below.width, width);
  const [top, bottom] = [44, 168];
  const shift = (/** @type {{width: number}} */ line) => (full - line.width) / 2;
  /** @type {Shape[]} */
  const shapes = [
    { type: "text", x: full / 2, y: 12, text: "source (keys)", size: 11, fill: faint, anchor: "middle" },
    { type: "text", x: full / 2, y: bottom + 46, text: "target (queries)", size: 11, fill: faint, anchor: "middle" },
  ];
  for (const one of lines) {
    const [from, to] = [shift(below) + (below.centres[one.row - rows[0]] ?? 0), shift(above) + (above.centres[one.column - columns[0]] ?? 0)];
    const middle = (top + bottom) / 2;
    shapes.push({
      type: "path", d: `M${from} ${bottom}C${from} ${middle} ${to} ${middle} ${to} ${top}`, stroke: accent, ...placesOf(weights, one),
      width: 0.5 + 6 * one.weight, opacity: 0.12 + 0.75 * one.weight, title: `weight ${one.weight.toFixed(3)}`,
    });
  }
  for (const [tokens, y, side, first] of /** @type {const} */ ([[above, top - 10, weights.column_side, columns[0]], [below, bottom + 20, weights.row_side, rows[0] + weights.first_row]])) {
    tokens.centres.forEach((centre, i) => shapes.push({
      type: "text", x: shift(tokens) + centre, y, text: tokens.texts[i] ?? "", fill: ink, anchor: "middle", mono: true, size: 13, place: { side, index: first + i },
    }));
  }
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

/**
 * @typedef {{side: Side, labels: string[]}} Axis the tokens of the rows or of the columns
 * @typedef {{row?: number, column?: number, head?: number}} Chosen a row or a column and a head; undefined for all
 */

/** Largest number of lines of a picture; each layer has the same share. */
export const MAX_LINES = 1500;
const LEAST = 0.05;
const STEP = 15;
const TOP = 40;
const LABEL = 96;
/** Width of all layers together, and smallest width of a layer. */
const ALL = 560;
const LEAST_WIDTH = 44;
const GAP = 12;

/**
 * Return the colour of a head. Neighbouring heads differ in hue. Of more than 12 heads, every second one is lighter.
 * @param {number} head
 * @param {number} heads
 * @param {boolean} dark
 */
export function headColour(head, heads, dark) {
  const lightness = (dark ? 0.76 : 0.56) + (heads > 12 && head % 2 ? (dark ? -0.16 : 0.14) : 0);
  return css(oklch(lightness, 0.16, 25 + (360 * head) / heads));
}

/**
 * Return the strongest lines of each layer, at most `MAX_LINES` in total.
 * @param {Bytes} thumbnails weights of all heads, 255 is 1
 * @param {Chosen} chosen
 */
export function layerLines(thumbnails, chosen) {
  const [layers = 0, nHeads = 0, rows = 0, columns = 0] = thumbnails.shape;
  const { head: only, ...cell } = chosen;
  const heads = only === undefined ? Array.from({ length: nHeads }, (_, head) => head) : [only];
  const part = { rows: /** @type {[number, number]} */ ([0, rows]), columns: /** @type {[number, number]} */ ([0, columns]), least: 255 * LEAST, ...cell };
  return Array.from({ length: layers }, (_, layer) => {
    const linesOf = (/** @type {number} */ head) => strongest(thumbnailOf(thumbnails, layer, head), part);
    const found = heads.flatMap((head) => linesOf(head).map((line) => ({ ...line, layer, head, weight: line.weight / 255 })));
    return found.sort((a, b) => b.weight - a.weight).slice(0, Math.floor(MAX_LINES / layers));
  }).flat();
}

/**
 * A thumbnail of a long text has fewer cells than the text has tokens.
 * @typedef {(index: number, cells: number, tokens: number) => number} Converter along one axis
 */

/** Return the first token of a thumbnail cell. @type {Converter} */
export const tokenOf = (cell, cells, tokens) => Math.floor((cell * tokens) / cells);

/** Return the thumbnail cell of a token. @type {Converter} */
export const cellOf = (token, cells, tokens) => Math.ceil(((token + 1) * cells) / tokens) - 1;

/**
 * Return the picture of all layers.
 * @param {Bytes} thumbnails
 * @param {Axis} queries
 * @param {Axis} keys
 * @param {{chosen: Chosen, dark: boolean}} options
 */
export function layersScene(thumbnails, queries, keys, { chosen, dark }) {
  const { ink, faint, line, paper } = theme();
  const [layers = 0, heads = 0, rows = 0, columns = 0] = thumbnails.shape;
  const y = (/** @type {number} */ i) => TOP + i * STEP;
  const wide = Math.max(LEAST_WIDTH, Math.min(200, ALL / layers));
  const left = (/** @type {number} */ layer) => LABEL + layer * (wide + GAP);
  const right = left(layers - 1) + wide;
  const query = (/** @type {number} */ row) => tokenOf(row, rows, queries.labels.length);
  const key = (/** @type {number} */ column) => tokenOf(column, columns, keys.labels.length);
  /** @type {Shape[]} */
  const shapes = [
    { type: "text", x: LABEL - 10, y: 14, text: "key", size: 11, fill: faint, anchor: "end" },
    { type: "text", x: right + 10, y: 14, text: "query", size: 11, fill: faint },
  ];
  for (let layer = 0; layer < layers; layer++) {
    shapes.push({ type: "text", x: left(layer) + wide / 2, y: 14, text: layer ? String(layer) : "layer 0", size: 11, fill: faint, anchor: "middle" });
    for (const [x, n] of /** @type {const} */ ([[left(layer), columns], [left(layer) + wide, rows]])) {
      shapes.push({ type: "path", d: `M${x} ${TOP - 6}V${y(n - 1) + 6}`, stroke: line, width: 1 });
    }
  }
  for (const { layer, head, row, column, weight } of layerLines(thumbnails, chosen).reverse()) { // the strongest lines last, on top
    shapes.push({
      type: "path", d: curve([left(layer), y(column)], [left(layer) + wide, y(row)]), stroke: headColour(head, heads, dark),
      width: 0.6 + 2.6 * weight, opacity: 0.2 + 0.75 * weight,
      title: `layer ${layer}, head ${head}: ${visible(queries.labels[query(row)] ?? "")} (${query(row)}) reads ${visible(keys.labels[key(column)] ?? "")} (${key(column)}), weight ${weight.toFixed(2)}`,
    });
  }
  for (let column = 0; column < columns; column++) {
    shapes.push({ type: "text", x: LABEL - 10, y: y(column) + 4, text: shortened(keys.labels[key(column)] ?? "", 11), fill: ink, anchor: "end", mono: true, place: { side: keys.side, index: key(column) } });
  }
  for (let row = 0; row < rows; row++) {
    shapes.push({ type: "text", x: right + 10, y: y(row) + 4, text: shortened(queries.labels[query(row)] ?? "", 11), fill: ink, mono: true, place: { side: queries.side, index: query(row) } });
  }
  return { width: right + LABEL, height: y(Math.max(rows, columns)) + 6, background: paper, shapes };
}
