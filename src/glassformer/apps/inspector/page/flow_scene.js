/**
 * Picture of the flow from left to right: rows are tokens, columns are tensors.
 *
 * @import { Column, Stage } from "./stages.js"
 * @import { Scene, Shape } from "./scene.js"
 * @import { Side } from "./types.js"
 *
 * @typedef {{values: Float32Array, columns: number, first: number}} Rows
 * Rows of a tensor from token `first` on, with `columns` values each.
 *
 * @typedef {{side: Side, labels: string[], from: number, to: number, row: number}} Lane
 * The tokens of a side. Tokens `from` to `to` are shown, and token `row` is chosen.
 *
 * @typedef {{x: number, width: number, stage: number, column: Column}} Placed
 *
 * @typedef {{
 *   stages: Stage[], current: number, lane: Lane, source: Lane, key: number, dark: boolean,
 *   alone: boolean, room: number, rows: (column: Column) => Rows | null, bars: {label: string, value: number}[], predicts: string, read: number,
 * }} Drawing
 * `alone` leaves out the columns of other stages, except the tokens. `room` is the width in pixels. `predicts` is the place that the bars predict, in words; empty for the labels of a text. `read` is the token whose vector
 * gives the bars; -1 if all tokens do.
 */

import { colourOf } from "./colours.js";
import { curve, windowAround } from "./lines.js";
import { pixels } from "./scene.js";
import { percent, shortened } from "./text.js";
import { theme } from "./theme.js";

/** Largest number of tokens that are shown at once. */
export const SHOWN = 14;
export const ROW = 26;
export const TOP = 50;
const CELLS = 24;
const GAP = 9;
const WIDTHS = { tokens: 98, vector: 42, add: 14, matrix: 0, lines: 56, fold: 30, output: 214 };
/** Titles of the columns with the residual stream. */
const RESIDUAL = new Set(["x", "norm(x + …)"]);

/**
 * Return the tokens of a side, with the window around the chosen token.
 * @param {Side} side
 * @param {string[]} labels
 * @param {number} row
 * @returns {Lane}
 */
export function laneOf(side, labels, row) {
  const [from, to] = windowAround(labels.length, row, SHOWN);
  return { side, labels, from, to, row };
}

/**
 * Average groups of neighbouring values, to at most `n` means.
 * @param {ArrayLike<number>} values
 * @param {number} n
 */
export function pooled(values, n) {
  const size = Math.min(n, values.length);
  return Array.from({ length: size }, (_, i) => {
    const [from, to] = [Math.floor((i * values.length) / size), Math.floor(((i + 1) * values.length) / size)];
    let sum = 0;
    for (let j = from; j < to; j++) sum += values[j] ?? 0;
    return sum / (to - from);
  });
}

/**
 * Return the row of a token; it is empty for a token whose row was not loaded.
 * @param {Rows} rows
 * @param {number} token
 */
export function rowOf(rows, token) {
  const begin = Math.max(0, token - rows.first) * rows.columns;
  return rows.values.subarray(begin, token < rows.first ? begin : begin + rows.columns);
}

/**
 * Return the positions of the columns, and the width of the picture. The sublayer of the current stage is open, and as
 * many of the others as there is room for; the rest show only their weights and their result.
 * @param {Drawing} drawing
 */
export function columnLayout(drawing) {
  if (drawing.alone) return layOut(drawing, (stage, column) => stage === drawing.stages[drawing.current] || column === drawing.stages[0]?.columns[0]);
  const open = new Set([drawing.stages[drawing.current]?.part]);
  const withOpen = () => layOut(drawing, (stage, column) => stage.part === undefined || open.has(stage.part) || isResult(stage, column));
  let layout = withOpen();
  for (const { part } of drawing.stages) {
    if (open.has(part)) continue;
    const wider = (open.add(part), withOpen());
    if (wider.width <= drawing.room) layout = wider;
    else open.delete(part);
  }
  return layout;
}

/** @param {Stage} stage @param {Column} column */
function isResult(stage, column) {
  return ["fold", "lines"].includes(column.kind) || column.rule === "weights" || (column.kind === "vector" && column === stage.columns.findLast((one) => one.kind === "vector") && stage.columns.some((one) => one.kind === "add"));
}

/** @param {Drawing} drawing @param {(stage: Stage, column: Column) => boolean} isShown */
function layOut(drawing, isShown) {
  /** @type {Placed[]} */
  const columns = [];
  let x = 8;
  for (const [number, stage] of drawing.stages.entries()) {
    let isFirst = true;
    for (const column of stage.columns) {
      if (!isShown(stage, column) || (column.kind === "matrix" && column.rule !== "weights" && number !== drawing.current)) continue;
      const { from, to } = laneFor(drawing, column);
      const width = column.kind === "matrix" ? Math.max(40, Math.min(110, 10 * (to - from))) : column.width ?? WIDTHS[column.kind];
      if (isFirst && number) x += 8;
      isFirst = false;
      columns.push({ x, width, stage: number, column });
      x += width + GAP;
    }
  }
  return { columns, width: x };
}

/** @param {Drawing} drawing @param {Column} column */
function laneFor({ lane, source }, column) {
  return column.side === "source" ? source : lane;
}

/**
 * Draw the flow.
 * @param {Drawing} drawing
 * @param {ReturnType<typeof columnLayout>} layout
 * @returns {Scene}
 */
export function flowScene(drawing, { columns, width }) {
  const { lane, source, stages, current } = drawing;
  const n = Math.max(lane.to - lane.from, columns.some(({ column }) => column.side === "source") ? source.to - source.from : 0, columns.some(({ column }) => column.kind === "output") ? Math.min(8, drawing.bars.length) : 0);
  const height = TOP + n * ROW + 22;
  const { ink, faint, line, accent, paper } = theme();
  /** @type {Shape[]} */
  const shapes = [];
  for (const [number, stage] of stages.entries()) {
    const own = columns.filter((one) => one.stage === number);
    const [left, right] = [own[0], own.at(-1)];
    if (!left || !right) continue;
    const [x, wide] = [left.x - 5, right.x + right.width - left.x + 10];
    const isCurrent = number === current;
    if (isCurrent) shapes.push({ type: "rect", x, y: 2, width: wide, height: height - 4, rx: 6, fill: accent, opacity: 0.09 }, { type: "rect", x, y: 2, width: wide, height: height - 4, rx: 6, stroke: accent });
    if (isCurrent || wide > 70) shapes.push({ type: "text", x: x + 5, y: 18, text: fitted(stage.title, wide - 4, isCurrent ? 7 : 6.2), size: isCurrent ? 12.5 : 11, bold: isCurrent, fill: isCurrent ? accent : faint });
  }
  const output = columns.find(({ column }) => column.kind === "output");
  const end = output ? output.x - 4 : width - 3;
  shapes.push({ type: "rect", x: 3, y: yOf(lane, lane.row) - 2, width: end - 3, height: ROW - 2, rx: 4, fill: accent, opacity: 0.1 });
  if (output) {
    const [tall, row, middle] = [Math.min(8, drawing.bars.length) * ROW, yOf(lane, lane.row) + ROW / 2 - 3, TOP + (Math.min(8, drawing.bars.length) * ROW) / 2 - 2];
    if (drawing.read === lane.row) shapes.push({ type: "path", d: `M${end} ${row}C${end + 10} ${row} ${output.x + 2} ${middle} ${output.x + 14} ${middle}`, stroke: accent, width: 2, opacity: 0.6 });
    shapes.push({ type: "rect", x: output.x + 14, y: TOP - 1, width: output.width - 14, height: tall, rx: 5, stroke: line, fill: paper });
  }
  for (const one of columns) {
    const { x, column } = one;
    const opacity = one.stage === current ? 1 : 0.6;
    shapes.push({ type: "text", x: x + one.width / 2, y: 38, text: fitted(column.kind === "output" ? drawing.predicts || column.title : column.title, one.width + 8, 6), size: 11, fill: one.stage === current ? ink : faint, anchor: "middle" });
    shapes.push(...columnShapes(drawing, one, opacity, height));
    const rows = column.kind === "vector" ? drawing.rows(column) : null;
    if (rows) shapes.push({ type: "text", x: x + one.width / 2, y: height - 8, text: String(rows.columns), size: 10, fill: faint, anchor: "middle" });
  }
  shapes.push(...joins(drawing, columns), { type: "path", d: `M3 ${TOP - 5}H${width - 3}`, stroke: line });
  return { width, height, background: paper, shapes };
}

/**
 * Return the lines of the chosen token: from each column to the next one, and from the vector x around each sublayer to
 * the sum (⊕), the residual connection.
 * @param {Drawing} drawing @param {Placed[]} columns @returns {Shape[]}
 */
function joins({ lane }, columns) {
  const { accent } = theme();
  const own = columns.filter(({ column }) => column.kind !== "output" && (column.side === undefined || column.side === lane.side));
  const [y, below] = [yOf(lane, lane.row) + ROW / 2 - 3, yOf(lane, lane.row) + ROW - 5];
  /** @type {Shape[]} */
  const shapes = [];
  /** The last column with the residual stream. @type {Placed | undefined} */
  let from;
  for (const [i, one] of own.entries()) {
    const before = own[i - 1];
    if (before) shapes.push({ type: "path", d: `M${before.x + before.width} ${y}H${one.x}`, stroke: accent, width: 2, opacity: 0.6 });
    if (one.column.kind === "add" && from) {
      const [left, right] = [from.x + from.width / 2, one.x + one.width / 2];
      shapes.push({ type: "path", d: `M${left} ${below}C${left + 12} ${below + 20} ${right - 12} ${below + 20} ${right} ${below - 2}`, stroke: accent, width: 1.5, opacity: 0.6, title: "residual connection: the vector x is added to the output of the sublayer" });
    }
    if (one.column.kind === "fold" || (one.column.kind === "vector" && RESIDUAL.has(one.column.title))) from = one;
    else if (one.column.kind === "add" && !own.slice(i + 1).some(({ stage, column }) => stage === one.stage && column.kind === "vector")) from = one; // the sum has no column of its own
  }
  return shapes;
}

/** @param {string} text @param {number} width @param {number} per width of a character */
function fitted(text, width, per) {
  const most = Math.floor(width / per);
  return text.length <= most ? text : most < 3 ? "" : `${text.slice(0, most - 1)}…`;
}

/** @param {Lane} lane @param {number} token */
function yOf(lane, token) {
  return TOP + (token - lane.from) * ROW;
}

/** @param {Drawing} drawing @param {Placed} one @param {number} opacity @param {number} height @returns {Shape[]} */
function columnShapes(drawing, { x, width, column }, opacity, height) {
  const lane = laneFor(drawing, column);
  const { ink, faint, line, accent } = theme();
  switch (column.kind) {
    case "tokens":
      return range(lane).flatMap((i) => /** @type {Shape[]} */ ([
        { type: "text", x: x + 15, y: yOf(lane, i) + 15, text: String(i), size: 10, fill: faint, anchor: "end" },
        {
          type: "text", x: x + 20, y: yOf(lane, i) + 15, text: shortened(lane.labels[i] ?? "", Math.floor((width - 18) / 8)), size: 12.5, mono: true,
          fill: ink, bold: i === lane.row && lane === drawing.lane, place: { side: lane.side, index: i },
        },
      ]));
    case "add":
      return range(lane).map((i) => ({ type: "text", x: x + width / 2, y: yOf(lane, i) + 16, text: "⊕", size: 14, fill: faint, anchor: "middle" }));
    case "fold":
      return [
        { type: "rect", x, y: TOP, width, height: height - TOP - 22, rx: 5, stroke: line, fill: line, opacity: 0.5 },
        { type: "text", x: x + width / 2 + 4, y: (height + TOP - 22) / 2, text: column.title, size: 12, fill: faint, anchor: "middle", rotate: -90 },
      ];
    case "output":
      return drawing.bars.slice(0, 8).flatMap(({ label, value }, i) => {
        const y = TOP + i * ROW;
        return /** @type {Shape[]} */ ([
          { type: "text", x: x + 92, y: y + 15, text: shortened(label, 9), size: 12.5, mono: true, fill: ink, anchor: "end" },
          { type: "rect", x: x + 98, y: y + 3, width: Math.max(1, 62 * value), height: 16, rx: 2, fill: accent, opacity },
          { type: "text", x: x + 102 + 62 * value, y: y + 15, text: percent(value), size: 11, fill: faint },
        ]);
      });
    case "lines":
      return lineShapes(drawing, { x, width, lane, column, opacity });
    default: {
      const rows = drawing.rows(column);
      if (!rows) return [];
      return column.kind === "vector" ? vectorShapes(drawing, { x, width, lane, rows, opacity }) : matrixShapes(drawing, { x, width, lane, column, rows, opacity });
    }
  }
}

/** @param {Lane} lane */
function range({ from, to }) {
  return Array.from({ length: to - from }, (_, i) => from + i);
}

/** @param {Drawing} drawing @param {{x: number, width: number, lane: Lane, rows: Rows, opacity: number}} where @returns {Shape[]} */
function vectorShapes({ dark }, { x, width, lane, rows, opacity }) {
  const strips = range(lane).map((i) => pooled(rowOf(rows, i), CELLS));
  const largest = Math.max(1e-9, ...strips.flat().map(Math.abs));
  return strips.map((strip, i) => ({
    type: "image", x, y: yOf(lane, lane.from + i) + 2, width, height: ROW - 8, opacity,
    image: pixels(strip.length, 1, (cell) => colourOf(strip[cell] ?? 0, "diverging", [-largest, largest], dark)),
  }));
}

/** @param {Drawing} drawing @param {{x: number, width: number, lane: Lane, column: Column, rows: Rows, opacity: number}} where @returns {Shape[]} */
function matrixShapes(drawing, { x, width, lane: keys, column, rows, opacity }) {
  const { lane, dark } = drawing;
  const { line, accent, second } = theme();
  const n = keys.to - keys.from;
  const values = range(lane).map((i) => Array.from(rowOf(rows, i).subarray(keys.from, keys.to)));
  const weights = column.rule === "scores" ? null : drawing.rows({ ...column, tensor: column.weights });
  const isHidden = (/** @type {number} */ i, /** @type {number} */ j) => weights !== null && rowOf(weights, lane.from + i)[keys.from + j] === 0;
  const largest = Math.max(1e-9, ...values.flatMap((row, i) => row.filter((_, j) => !isHidden(i, j)).map(Math.abs)));
  const image = pixels(n, values.length, (cell) => {
    const [i, j] = [Math.floor(cell / n), cell % n];
    const value = values[i]?.[j] ?? 0;
    if (isHidden(i, j)) return dark ? [44, 51, 64] : [223, 227, 233];
    return column.rule === "weights" ? colourOf(value, "sequential", [0, 1], dark) : colourOf(value, "diverging", [-largest, largest], dark);
  });
  const [y, height, cell] = [TOP, values.length * ROW - 2, width / n];
  /** @type {Shape[]} */
  const shapes = [
    { type: "image", x, y, width, height, image, opacity },
    { type: "rect", x, y, width, height, stroke: line },
    { type: "rect", x: x - 1, y: yOf(lane, lane.row) - 1, width: width + 2, height: ROW, stroke: accent },
  ];
  if (drawing.key >= keys.from && drawing.key < keys.to) shapes.push({ type: "rect", x: x + (drawing.key - keys.from) * cell, y: yOf(lane, lane.row), width: cell, height: ROW - 2, stroke: second });
  return shapes;
}

/** @param {Drawing} drawing @param {{x: number, width: number, lane: Lane, column: Column, opacity: number}} where @returns {Shape[]} */
function lineShapes(drawing, { x, width, lane: keys, column, opacity }) {
  const { lane } = drawing;
  const { accent } = theme();
  const rows = drawing.rows(column);
  if (!rows) return [];
  const weights = rowOf(rows, lane.row);
  const to = yOf(lane, lane.row) + ROW / 2 - 2;
  return range(keys).filter((j) => (weights[j] ?? 0) > 0.01).map((j) => {
    const weight = weights[j] ?? 0;
    return {
      type: "path", d: curve([x, yOf(keys, j) + ROW / 2 - 2], [x + width, to]), stroke: accent,
      width: 0.6 + 6 * weight, opacity: opacity * (0.25 + 0.75 * weight),
      title: `weight ${weight.toFixed(3)}`, place: { side: keys.side, index: j }, across: { side: lane.side, index: lane.row },
    };
  });
}
