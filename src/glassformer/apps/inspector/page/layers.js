/**
 * Attention lines of all layers: one column per layer, from left to right. A line leads from a key (left) to a query
 * (right) that attends to it. Each head has a colour.
 *
 * @import { Side } from "./types.js"
 * @import { Bytes } from "./source.js"
 * @import { Scene, Shape } from "./scene.js"
 */

import { css, oklch } from "./colours.js";
import { thumbnailOf } from "./grid.js";
import { shortened, visible } from "./text.js";
import { theme } from "./theme.js";

/**
 * @typedef {{layer: number, head: number, row: number, column: number, weight: number}} Line
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
 * Return the colour of a head: neighbours differ in hue, and of more than 12 heads every second one is lighter.
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
 * @returns {Line[]}
 */
export function layerLines(thumbnails, chosen) {
  const [layers = 0, heads = 0, rows = 0, columns = 0] = thumbnails.shape;
  const isChosen = (/** @type {number | undefined} */ wanted, /** @type {number} */ one) => wanted === undefined || wanted === one;
  /** @type {Line[]} */
  const lines = [];
  for (let layer = 0; layer < layers; layer++) {
    /** @type {Line[]} */
    const found = [];
    for (let head = 0; head < heads; head++) {
      if (!isChosen(chosen.head, head)) continue;
      const { values } = thumbnailOf(thumbnails, layer, head);
      for (let row = chosen.row ?? 0; row < rows && isChosen(chosen.row, row); row++) {
        for (let column = chosen.column ?? 0; column < columns && isChosen(chosen.column, column); column++) {
          const weight = (values[row * columns + column] ?? 0) / 255;
          if (weight >= LEAST) found.push({ layer, head, row, column, weight });
        }
      }
    }
    lines.push(...found.sort((a, b) => b.weight - a.weight).slice(0, Math.floor(MAX_LINES / layers)));
  }
  return lines;
}

/**
 * Return the first token of a thumbnail cell, along one axis. A thumbnail of a long text has fewer cells than the text
 * has tokens.
 * @param {number} cell
 * @param {number} cells
 * @param {number} tokens
 */
export const tokenOf = (cell, cells, tokens) => Math.floor((cell * tokens) / cells);

/**
 * Return the thumbnail cell of a token, along one axis.
 * @param {number} token
 * @param {number} cells
 * @param {number} tokens
 */
export const cellOf = (token, cells, tokens) => Math.ceil(((token + 1) * cells) / tokens) - 1;

/**
 * Return the picture of all layers.
 * @param {Bytes} thumbnails
 * @param {Axis} queries
 * @param {Axis} keys
 * @param {{chosen: Chosen, dark: boolean}} options
 * @returns {Scene}
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
    const [from, to] = [left(layer), left(layer) + wide];
    const middle = (from + to) / 2;
    shapes.push({
      type: "path", d: `M${from} ${y(column)}C${middle} ${y(column)} ${middle} ${y(row)} ${to} ${y(row)}`, stroke: headColour(head, heads, dark),
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
