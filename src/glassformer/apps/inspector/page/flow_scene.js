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
 *   alone: boolean, room: number, tall: number, rows: (column: Column) => Rows | null, bars: {label: string, value: number}[], predicts: string, read: number,
 * }} Drawing
 * `alone` leaves out the columns of other stages, except the tokens. `room` is the width in pixels, and `tall` the height of a row. `predicts` is the place that the bars predict, in words; empty for the labels of a text. `read` is the token whose vector
 * gives the bars; -1 if all tokens do.
 *
 * @typedef {{columns: Placed[], width: number, top: number, n: number}} Layout `top` is the place of the first of the `n` rows.
 * @typedef {Drawing & Layout} Picture
 */

import { colourOf } from "./colours.js";
import { curve, windowAround } from "./lines.js";
import { pixels } from "./scene.js";
import { inputsOf } from "./stages.js";
import { percent, shortened } from "./text.js";
import { theme } from "./theme.js";

/** Largest number of tokens that are shown at once. */
export const SHOWN = 14;
/** Heights of a row. The first one is used for which there is room. */
export const TALL = [26, 20, 15];
const TOP = 50;
/** Largest number of cells of a strip. Each is the mean of neighbouring numbers. */
export const CELLS = 24;
/** Width of a letter, and largest number of letters, of the key tokens above a matrix. A token that is wider than its cell is turned. */
const [LETTER, LETTERS] = [5.6, 5];
const GAP = 9;
const WIDTHS = { tokens: 98, vector: 42, add: 14, matrix: 0, lines: 56, fold: 30, output: 214 };
/** Titles of the columns with the residual stream. */
const RESIDUAL = new Set(["x", "norm(x + …)"]);

/** Return the tokens of a side, with the window around the chosen token. @param {Side} side @param {string[]} labels @param {number} row @returns {Lane} */
export function laneOf(side, labels, row) {
  const [from, to] = windowAround(labels.length, row, SHOWN);
  return { side, labels, from, to, row };
}

/** Average groups of neighbouring values, to at most `n` means. @param {ArrayLike<number>} values @param {number} n */
export function pooled(values, n) {
  const size = Math.min(n, values.length);
  return Array.from({ length: size }, (_, i) => {
    const [from, to] = [Math.floor((i * values.length) / size), Math.floor(((i + 1) * values.length) / size)];
    let sum = 0;
    for (let j = from; j < to; j++) sum += values[j] ?? 0;
    return sum / (to - from);
  });
}

/** Return the row of a token; it is empty for a token whose row was not loaded. @param {Rows} rows @param {number} token */
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
  const own = drawing.stages[drawing.current];
  const kept = [drawing.stages[0]?.columns[0], streamBefore(drawing.stages, own?.columns.find(({ kind }) => kind === "add"))];
  if (drawing.alone) return layOut(drawing, (stage, column) => stage === own || kept.includes(column));
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
  return ["fold", "lines", "add"].includes(column.kind) || column.rule === "weights" || (column.kind === "vector" && column === stage.columns.findLast((one) => one.kind === "vector") && stage.columns.some((one) => one.kind === "add"));
}

/** @param {Drawing} drawing @param {(stage: Stage, column: Column) => boolean} isShown @returns {Layout} */
function layOut(drawing, isShown) {
  /** @type {Placed[]} */
  const columns = [];
  let [x, top] = [8, TOP];
  for (const [number, stage] of drawing.stages.entries()) {
    let begin = -1;
    for (const column of stage.columns) {
      if (!isShown(stage, column) || (column.kind === "matrix" && column.rule !== "weights" && number !== drawing.current)) continue;
      const lane = laneFor(drawing, column);
      const cells = lane.to - lane.from;
      const titled = ["fold", "tokens", "output"].includes(column.kind) ? 0 : 6 * column.title.length - 8;
      const width = column.kind === "matrix" ? Math.max(40, cells * (drawing.alone ? 22 : 10)) : Math.max(titled, column.width ?? WIDTHS[column.kind]);
      if (column.kind === "matrix") top = Math.max(top, TOP + 14, ...keyTexts(lane).map(({ wide }) => (wide > width / cells ? TOP + 6 + wide : 0)));
      if (begin < 0) begin = x += number ? 8 : 0;
      columns.push({ x, width, stage: number, column });
      x += width + GAP;
    }
    if (begin >= 0 && number === drawing.current) x = Math.max(x, begin + titleWidth(stage));
  }
  const { lane, source } = drawing;
  const n = Math.max(lane.to - lane.from, columns.some(({ column }) => column.side === "source") ? source.to - source.from : 0, columns.some(({ column }) => column.kind === "output") ? Math.min(8, drawing.bars.length) : 0);
  return { columns, width: x, top, n };
}

/** @param {Stage} stage */
const titleWidth = ({ title }) => 7.4 * title.length + 10;

/** Return the texts of the keys above a matrix, and their widths. @param {Lane} lane */
const keyTexts = (lane) => range(lane).map((i) => shortened(lane.labels[i] ?? "", LETTERS)).map((text) => ({ text, wide: LETTER * text.length }));

/** Return true if the rows of a column are tokens of the other side. @param {Drawing} drawing @param {Column} column */
const isOther = ({ lane }, { side, kind }) => side !== undefined && side !== lane.side && kind !== "matrix";

/** @param {Drawing} drawing @param {Column} column */
export function laneFor({ lane, source }, column) {
  return column.side === "source" ? source : lane;
}

/** Draw the flow. @param {Drawing} drawing @param {Layout} layout @returns {Scene} */
export function flowScene(drawing, layout) {
  const picture = { ...drawing, ...layout };
  const { lane, stages, current, columns, width, top, tall, n } = picture;
  const height = top + n * tall + 22;
  const { faint, line, accent, paper } = theme();
  /** @type {Shape[]} */
  const shapes = [];
  for (const [number, stage] of stages.entries()) {
    const own = columns.filter((one) => one.stage === number && one.column.kind !== "fold"); // other blocks are no part of the stage
    const [left, right] = [own[0], own.at(-1)];
    if (!left || !right) continue;
    const isCurrent = number === current;
    const [x, wide] = [left.x - 5, Math.max(right.x + right.width - left.x + 10, isCurrent ? titleWidth(stage) : 0)];
    if (isCurrent) shapes.push({ type: "rect", x, y: 2, width: wide, height: height - 4, rx: 6, fill: accent, opacity: 0.09 }, { type: "rect", x, y: 2, width: wide, height: height - 4, rx: 6, stroke: accent });
    if (isCurrent || wide > 70) shapes.push({ type: "text", x: x + 5, y: 18, text: isCurrent || 6.2 * stage.title.length < wide - 4 ? stage.title : stage.short ?? fitted(stage.title, wide - 4, 6.2), size: isCurrent ? 12.5 : 11, bold: isCurrent, fill: isCurrent ? accent : faint });
  }
  const output = columns.find(({ column }) => column.kind === "output");
  const end = output ? output.x - 4 : width - 3;
  const band = (/** @type {number} */ x, /** @type {number} */ to, /** @type {number} */ row) => shapes.push({ type: "rect", x, y: yOf(picture, lane, row) - 2, width: to - x, height: tall - 2, rx: 4, fill: accent, opacity: 0.1 });
  const read = range(lane).filter((i) => drawing.read < 0 || drawing.read === i);
  const before = output && columns[columns.indexOf(output) - 1];
  band(3, before && !read.includes(lane.row) ? before.x + before.width + 4 : end, lane.row);
  if (output && before) {
    const room = Math.min(8, drawing.bars.length) * tall;
    const [left, middle] = [before.x + before.width, top + room / 2 - 2];
    for (const i of read) {
      const { y } = levels(picture, i);
      if (i !== lane.row) band(before.x - 4, end, i);
      shapes.push({ type: "path", d: `M${left} ${y}H${end}C${end + 10} ${y} ${output.x + 2} ${middle} ${output.x + 14} ${middle}`, stroke: accent, width: read.length > 1 ? 1.2 : 2, opacity: 0.6, title: `row ${i} → prediction` });
    }
    shapes.push({ type: "rect", x: output.x + 14, y: top - 1, width: output.width - 14, height: room, rx: 5, stroke: line, fill: paper });
  }
  const [other, own] = [true, false].map((wanted) => columns.filter(({ column }) => isOther(drawing, column) === wanted));
  const boxes = (other ?? []).map((one) => /** @type {Shape} */ ({ type: "rect", x: one.x - 4, y: top - 3, width: one.width + (one.column.kind === "lines" ? 4 : GAP), height: n * tall + 2, fill: paper }));
  shapes.push(...joins(picture), ...boxes, ...keyJoins(picture), ...(own ?? []).flatMap((one) => titled(picture, one, height)), ...(other ?? []).flatMap((one) => titled(picture, one, height)));
  shapes.push({ type: "path", d: `M3 ${top - 5}H${width - 3}`, stroke: line });
  return { width, height, background: paper, shapes };
}

/** Return a column with its title above it, and the width of its vectors below it. @param {Picture} picture @param {Placed} one @param {number} height @returns {Shape[]} */
function titled(picture, one, height) {
  const { x, width, column } = one;
  const { ink, faint } = theme();
  const isCurrent = one.stage === picture.current;
  const title = column.kind === "fold" ? "" : column.kind === "output" ? fitted(picture.predicts || column.title, width + 8, 6) : column.title;
  const rows = column.kind === "vector" ? picture.rows(column) : null;
  return [
    { type: "text", x: x + width / 2, y: 38, text: title, size: 11, fill: isCurrent ? ink : faint, anchor: "middle" },
    ...columnShapes(picture, one, isCurrent ? 1 : 0.6, height),
    ...(rows ? [/** @type {Shape} */ ({ type: "text", x: x + width / 2, y: height - 8, text: String(rows.columns), size: 10, fill: faint, anchor: "middle" })] : []),
  ];
}

/** Return the heights of the lines of a row: `y` through its strips, `over` and `under` them, and `deep` below `under`. @param {Picture} picture @param {number} token @param {Lane} [lane] */
function levels(picture, token, lane = picture.lane) {
  const [above, thick] = [yOf(picture, lane, token) + 2, Math.min(18, picture.tall - 6)];
  const [below, gap] = [above + thick, picture.tall - thick];
  return { above, below, y: above + thick / 2, over: above - gap / 2, under: below + 0.3 * gap, deep: below + 0.75 * gap };
}

/** Return the last column with the residual stream before a sum: a vector x, a fold, or a sum without a column of its own. @param {Stage[]} stages @param {Column} [sum] */
function streamBefore(stages, sum) {
  const all = stages.flatMap(({ columns }) => columns);
  return sum && all.slice(0, all.indexOf(sum)).findLast(({ kind, title }) => kind === "fold" || kind === "add" || (kind === "vector" && RESIDUAL.has(title)));
}

/**
 * Return the lines of the chosen token: to each column from those that it reads, and from the vector x around each sublayer to
 * the sum (⊕), the residual connection. Columns that read the same are branches of one line, over the strips; lines join under them.
 * @param {Picture} picture @returns {Shape[]}
 */
function joins(picture) {
  const { lane, columns, stages } = picture;
  const { y, above, below, over, under, deep } = levels(picture, lane.row);
  const placed = new Map(columns.map((one) => [one.column, one]));
  const inputs = inputsOf(stages);
  /** Return the shown columns from which a column is computed. @type {(column: Column) => Placed[]} */
  const sources = (column) => [...new Set((inputs.get(column) ?? []).flatMap((one) => placed.get(one) ?? sources(one)))];
  const all = columns.filter(({ column }) => inputs.has(column)).map((one) => ({ one, from: sources(one.column) }));
  const [right, middle] = [(/** @type {Placed} */ { x, width }) => x + width, (/** @type {Placed} */ { x, width }) => x + width / 2];
  /** @type {Shape[]} */
  const shapes = [];
  for (const { one, from } of all) {
    const [i, isLines] = [columns.indexOf(one), one.column.kind === "lines"];
    const before = columns[i - 1];
    if (!before || (isLines && before.column.kind === "tokens")) continue; // the tokens of the other side
    const add = (/** @type {string} */ d, /** @type {Placed[]} */ read, width = 2, title = `${read.map(({ column }) => column.title).join(", ")} → ${one.column.title}`) => shapes.push({ type: "path", d, stroke: theme().accent, opacity: 0.6, width, title });
    const end = one.column.kind === "vector" ? `H${middle(one)}V${above}` : `H${one.x - 8}V${y}H${one.x}`;
    const beside = all.find((other) => other.one.x < one.x && other.from.length && other.from.every((source) => from.includes(source)));
    if (beside) add(`M${beside.one.x - 8} ${y}V${over}${end}`, beside.from);
    for (const source of from.filter((other) => !beside?.from.includes(other))) {
      const isAround = all.some((other) => other.one.x < one.x && other.from.length > 1 && other.from.every(({ x }) => x > source.x)); // another join
      if (before === source) add(`M${right(source)} ${y}H${one.x}`, [source]);
      else if (isLines) add(`M${right(source)} ${y}h2V${over}${end}`, [source]);
      else add(`M${middle(source)} ${below}V${isAround ? deep : under}H${one.x - Math.min(8, 0.6 * (one.x - right(before)))}V${y}H${one.x}`, [source]);
    }
    const stream = one.column.kind === "add" ? placed.get(/** @type {Column} */ (streamBefore(stages, one.column))) : undefined;
    if (stream) add(`M${middle(stream)} ${below}V${deep}H${middle(one)}V${y + 5}`, [], 1.5, "residual connection: the vector x is added to the output of the sublayer");
    if (/\.cells\..*\.(state|cell)$|^decoder\.hidden$/.test(one.column.tensor ?? "")) shapes.push(...steps(picture, one));
  }
  return shapes;
}

/**
 * Return the lines of the chosen source token: through the encoder to its vectors s, k and v, from k to its weight, and from v to the context.
 * @param {Picture} picture @returns {Shape[]}
 */
function keyJoins(picture) {
  const { columns, source, key, stages, current, lane } = picture;
  if (!stages[current]?.columns.some(({ side }) => side === "source") || key < source.from || key >= source.to) return [];
  const of = (/** @type {Column["kind"]} */ kind, title = "") => columns.find(({ column }) => column.side === "source" && column.kind === kind && (!title || column.title === title));
  const [tokens, s, k, v, matrix, lines] = [of("tokens"), of("vector", "s"), of("vector", "k"), of("vector", "v"), of("matrix"), of("lines")];
  const { y, over, under } = levels(picture, key, source);
  /** @type {Shape[]} */
  const shapes = [];
  const add = (/** @type {string} */ d, /** @type {string} */ title) => shapes.push({ type: "path", d, stroke: theme().second, opacity: 0.7, width: 2, title, place: { side: "source", index: key } });
  if (tokens && s && k) add(`M${tokens.x + tokens.width - 4} ${y}H${k.x}`, `source token ${key} → encoder → s → k`);
  if (s && v) add(`M${s.x + s.width / 2} ${y}V${under}H${v.x + v.width / 2}V${y}`, "s → v");
  if (k && matrix) add(`M${k.x + k.width / 2} ${y}V${over}H${matrix.x + ((key - source.from + 0.5) * matrix.width) / (source.to - source.from)}V${levels(picture, lane.row).y}`, `key ${key} → ${matrix.column.title} of row ${lane.row}`);
  if (v && lines) add(`M${v.x + v.width} ${y}H${lines.x}`, `value ${key} → context`);
  return shapes;
}

/** Return an arrow to each row of a recurrent state from that of the step before. @param {Picture} picture @param {Placed} one @returns {Shape[]} */
function steps(picture, { x, width, column }) {
  const [rows, by] = [range(picture.lane), column.is_reversed ? 1 : -1];
  return rows.filter((i) => rows.includes(i + by)).map((i) => ({
    type: "path", d: `M${x + width + 1} ${levels(picture, i + by).y}c8 0 8 ${-by * picture.tall} 0 ${-by * picture.tall}m4 -3l-4 3l4 3`,
    stroke: i === picture.lane.row ? theme().accent : theme().faint, width: 1.2, opacity: 0.8, title: `${column.title} of row ${i + by} → row ${i}`,
  }));
}

/** @param {string} text @param {number} width @param {number} per width of a character */
function fitted(text, width, per) {
  const most = Math.floor(width / per);
  return text.length <= most ? text : most < 3 ? "" : `${text.slice(0, most - 1)}…`;
}

/** Return the place of a token; without one, that of the chosen one. @param {Picture} picture @param {Lane} lane @param {number} [token] */
function yOf({ top, tall }, lane, token = lane.row) {
  return top + (token - lane.from) * tall;
}

/** @param {Picture} picture @param {Placed} one @param {number} opacity @param {number} height @returns {Shape[]} */
function columnShapes(picture, { x, width, column }, opacity, height) {
  const lane = laneFor(picture, column);
  const { top, tall } = picture;
  const [base, thick] = [tall / 2 + 2, Math.min(16, tall - 4)];
  const { ink, faint, line, accent } = theme();
  switch (column.kind) {
    case "tokens":
      return range(lane).flatMap((i) => /** @type {Shape[]} */ ([
        { type: "text", x: x + 15, y: yOf(picture, lane, i) + base, text: String(i), size: 10, fill: faint, anchor: "end" },
        {
          type: "text", x: x + 20, y: yOf(picture, lane, i) + base, text: shortened(lane.labels[i] ?? "", Math.floor((width - 18) / 8)), size: 12.5, mono: true,
          fill: ink, bold: i === lane.row && lane === picture.lane, place: { side: lane.side, index: i },
        },
      ]));
    case "add":
      return range(lane).map((i) => ({ type: "text", x: x + width / 2, y: yOf(picture, lane, i) + base + 1, text: "⊕", size: 14, fill: faint, anchor: "middle" }));
    case "fold":
      return [
        { type: "rect", x, y: top, width, height: height - top - 22, rx: 5, stroke: line, fill: line, opacity: 0.5 },
        { type: "text", x: x + width / 2 + 4, y: (height + top - 22) / 2, text: column.title, size: 12, fill: faint, anchor: "middle", rotate: -90 },
      ];
    case "output":
      return picture.bars.slice(0, 8).flatMap(({ label, value }, i) => {
        const y = top + i * tall;
        return /** @type {Shape[]} */ ([
          { type: "text", x: x + 92, y: y + base, text: shortened(label, 9), size: 12.5, mono: true, fill: ink, anchor: "end" },
          { type: "rect", x: x + 98, y: y + base - 4 - thick / 2, width: Math.max(1, 62 * value), height: thick, rx: 2, fill: accent, opacity },
          { type: "text", x: x + 102 + 62 * value, y: y + base, text: percent(value), size: 11, fill: faint },
        ]);
      });
    case "lines":
      return lineShapes(picture, { x, width, lane, column, opacity });
    default: {
      const rows = picture.rows(column);
      if (!rows) return [];
      return column.kind === "vector" ? vectorShapes(picture, { x, width, lane, column, rows, opacity }) : matrixShapes(picture, { x, width, lane, column, rows, opacity });
    }
  }
}

/** @param {Lane} lane */
function range({ from, to }) {
  return Array.from({ length: to - from }, (_, i) => from + i);
}

/** @param {Picture} picture @param {{x: number, width: number, lane: Lane, column: Column, rows: Rows, opacity: number}} where @returns {Shape[]} */
function vectorShapes(picture, { x, width, lane, column, rows, opacity }) {
  const strips = range(lane).map((i) => pooled(rowOf(rows, i), CELLS));
  // A row that is much larger than the others, as that of a first token often is, does not make them pale
  const ofRows = strips.map((strip) => Math.max(1e-9, ...strip.map(Math.abs))).sort((a, b) => a - b);
  const largest = Math.min(ofRows.at(-1) ?? 1, 3 * (ofRows[Math.floor(ofRows.length / 2)] ?? 1));
  return strips.map((strip, i) => ({
    type: "image", title: `row ${lane.from + i}: ${lane.labels[lane.from + i]}, ${column.tensor}`, x, y: yOf(picture, lane, lane.from + i) + 2, width, height: Math.min(18, picture.tall - 6), opacity,
    image: pixels(strip.length, 1, (cell) => colourOf(strip[cell] ?? 0, "diverging", [-largest, largest], picture.dark)),
  }));
}

/** @param {Picture} picture @param {{x: number, width: number, lane: Lane, column: Column, rows: Rows, opacity: number}} where @returns {Shape[]} */
function matrixShapes(picture, { x, width, lane: keys, column, rows, opacity }) {
  const { lane, dark, top, tall } = picture;
  const { faint, line, accent, second } = theme();
  const n = keys.to - keys.from;
  const values = range(lane).map((i) => Array.from(rowOf(rows, i).subarray(keys.from, keys.to)));
  const weights = column.rule === "scores" ? null : picture.rows({ ...column, tensor: column.weights });
  const isHidden = (/** @type {number} */ i, /** @type {number} */ j) => weights !== null && rowOf(weights, lane.from + i)[keys.from + j] === 0;
  const largest = Math.max(1e-9, ...values.flatMap((row, i) => row.filter((_, j) => !isHidden(i, j)).map(Math.abs)));
  const image = pixels(n, values.length, (cell) => {
    const [i, j] = [Math.floor(cell / n), cell % n];
    const value = values[i]?.[j] ?? 0;
    if (isHidden(i, j)) return dark ? [44, 51, 64] : [223, 227, 233];
    return column.rule === "weights" ? colourOf(value, "sequential", [0, 1], dark) : colourOf(value, "diverging", [-largest, largest], dark);
  });
  const [y, height, cell] = [top, values.length * tall - 2, width / n];
  /** @type {Shape[]} */
  const shapes = [
    { type: "image", x, y, width, height, image, opacity },
    { type: "rect", x, y, width, height, stroke: line },
    { type: "rect", x: x - 1, y: yOf(picture, lane) - 1, width: width + 2, height: tall, stroke: accent },
  ];
  if (picture.key >= keys.from && picture.key < keys.to) shapes.push({ type: "rect", x: x + (picture.key - keys.from) * cell, y: yOf(picture, lane), width: cell, height: tall - 2, stroke: second });
  shapes.push(...keyTexts(keys).map(({ text, wide }, j) => /** @type {Shape} */ ({
    type: "text", x: x + (j + 0.5) * cell + (wide > cell ? 3 : 0), y: top - 9, text, size: 9, mono: true, fill: picture.key === keys.from + j ? second : faint,
    anchor: wide > cell ? "start" : "middle", rotate: wide > cell ? -90 : 0, place: { side: keys.side, index: keys.from + j },
  })));
  return shapes;
}

/** @param {Picture} picture @param {{x: number, width: number, lane: Lane, column: Column, opacity: number}} where @returns {Shape[]} */
function lineShapes(picture, { x, width, lane: keys, column, opacity }) {
  const { lane, tall } = picture;
  const { accent } = theme();
  const rows = picture.rows(column);
  if (!rows) return [];
  const weights = rowOf(rows, lane.row);
  const to = yOf(picture, lane) + tall / 2 - 2;
  return range(keys).filter((j) => (weights[j] ?? 0) > 0.01).map((j) => {
    const weight = weights[j] ?? 0;
    return {
      type: "path", d: curve([x, yOf(picture, keys, j) + tall / 2 - 2], [x + width, to]), stroke: accent,
      width: 0.6 + 6 * weight, opacity: opacity * (0.25 + 0.75 * weight),
      title: `weight ${weight.toFixed(3)}`, place: { side: keys.side, index: j }, across: { side: lane.side, index: lane.row },
    };
  });
}
