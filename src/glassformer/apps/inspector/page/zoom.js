/**
 * The single numbers behind a picture of the flow: the words for the cell under the pointer, and the bars of a vector.
 *
 * @import { Scene, Shape } from "./scene.js"
 * @import { Drawing, Layout, Placed, Rows } from "./flow_scene.js"
 */

import { css, colourOf } from "./colours.js";
import { CELLS, laneFor, rowOf } from "./flow_scene.js";
import { fixed, signed, visible } from "./text.js";
import { theme } from "./theme.js";

/** @typedef {{one: Placed, row: number, key: number, share: number}} Hit a column, its row, the key of a matrix, and the place from its left (0) to its right (1) */

/** Return the tokens of the rows of a column. The rows of a matrix are queries. @param {Drawing} drawing @param {import("./stages.js").Column} column */
const rowsOf = (drawing, column) => (column.kind === "matrix" ? drawing.lane : laneFor(drawing, column));

/**
 * Return what a picture has at a place; null beside the columns.
 * @param {Drawing} drawing @param {Layout} layout @param {number} x @param {number} y @returns {Hit | null}
 */
export function hitAt(drawing, layout, x, y) {
  const one = layout.columns.find((column) => x >= column.x && x <= column.x + column.width);
  if (!one || y < layout.top) return null;
  const within = (/** @type {import("./flow_scene.js").Lane} */ { from, to }, /** @type {number} */ i) => Math.max(from, Math.min(to - 1, from + Math.floor(i)));
  const keys = one.column.side === "source" ? drawing.source : drawing.lane;
  const share = (x - one.x) / one.width;
  return { one, row: within(rowsOf(drawing, one.column), (y - layout.top) / drawing.tall), key: within(keys, share * (keys.to - keys.from)), share };
}

/** Return the number or the numbers at a place, in words; empty where there is none. @param {Drawing} drawing @param {Hit} hit */
export function hitText(drawing, { one: { column }, row, key, share }) {
  const rows = drawing.rows(column);
  const values = rows && rowOf(rows, row);
  if (!values?.length || !["vector", "matrix"].includes(column.kind)) return "";
  const lane = rowsOf(drawing, column);
  const place = `${column.rule === "masked" ? "score behind the mask" : column.title} of row ${row} ${visible(lane.labels[row] ?? "")}`;
  if (column.kind === "matrix") return `${place}, key ${key} ${visible((column.side === "source" ? drawing.source : drawing.lane).labels[key] ?? "")}: ${fixed(values[key], 4)}`;
  const n = Math.min(CELLS, values.length);
  const cell = Math.min(n - 1, Math.floor(share * n));
  const [from, to] = [Math.floor((cell * values.length) / n), Math.floor(((cell + 1) * values.length) / n)];
  const some = Array.from(values.subarray(from, to));
  if (some.length === 1) return `${place}: number ${from} of ${values.length} is ${fixed(some[0], 4)}`;
  const shown = some.length <= 4 ? some.map((x) => fixed(x)).join(", ") : `mean ${fixed(some.reduce((sum, x) => sum + x, 0) / some.length)}, from ${fixed(Math.min(...some))} to ${fixed(Math.max(...some))}`;
  return `${place}: numbers ${from} to ${to - 1} of ${values.length}: ${shown}`;
}

const [HEIGHT, LEFT] = [84, 44];

/** Return the bars of all numbers of a vector. @param {ArrayLike<number>} values @param {number} width @param {boolean} dark @returns {Scene} */
export function barsOfVector(values, width, dark) {
  const { faint, line, paper } = theme();
  const all = Array.from(values);
  const [low, high] = [Math.min(0, ...all), Math.max(1e-9, ...all)];
  const y = (/** @type {number} */ value) => 6 + ((high - value) / (high - low)) * (HEIGHT - 12);
  const [largest, wide] = [Math.max(...all.map(Math.abs)), (width - LEFT) / all.length];
  /** @type {Shape[]} */
  const shapes = all.map((value, i) => ({
    type: "rect", x: LEFT + i * wide, y: Math.min(y(value), y(0)), width: Math.max(0.5, wide - (wide > 3 ? 1 : 0)), height: Math.max(0.5, Math.abs(y(value) - y(0))),
    fill: css(colourOf(Math.sign(value) * (0.5 * largest + 0.5 * Math.abs(value)), "diverging", [-largest, largest], dark)), title: `${i}: ${fixed(value, 4)}`,
  }));
  shapes.push({ type: "path", d: `M${LEFT} ${y(0)}H${width}`, stroke: line });
  for (const value of [high, low].filter((bound, i) => i === 0 || bound < 0)) shapes.push({ type: "text", x: LEFT - 6, y: y(value) + 4, text: signed(value, 2), size: 10.5, fill: faint, anchor: "end" });
  return { width, height: HEIGHT, background: paper, shapes };
}

/** Return the index of the bar at a place. @param {number} x @param {number} width @param {number} n */
export const barAt = (x, width, n) => Math.max(0, Math.min(n - 1, Math.floor(((x - LEFT) / (width - LEFT)) * n)));

/**
 * Return the vector that a stage shows number by number: that of the chosen column, or the products of query and key, whose sum is the score before its scale.
 * @param {Drawing} drawing @param {string} chosen name of a tensor
 * @returns {{title: string, values: ArrayLike<number>, tensor: string} | null}
 */
export function zoomed(drawing, chosen) {
  const stage = drawing.stages[drawing.current];
  const vectors = stage?.columns.filter(({ kind }) => kind === "vector") ?? [];
  const column = vectors.find(({ tensor }) => tensor === chosen) ?? vectors.find(({ title }) => title === "neurons") ?? vectors.at(-1);
  if (column) {
    const rows = drawing.rows(column);
    const row = column.side === "source" ? drawing.key : drawing.lane.row;
    const values = rows && rowOf(rows, row);
    return values?.length ? { title: `${column.title} of row ${row} ${visible(laneFor(drawing, column).labels[row] ?? "")}: ${values.length} numbers`, values, tensor: column.tensor ?? "" } : null;
  }
  const matrix = stage?.columns.find(({ kind }) => kind === "matrix");
  if (!matrix || drawing.key < 0) return null;
  const of = (/** @type {string} */ name, /** @type {"source" | "target" | undefined} */ side) => drawing.rows({ kind: "vector", title: "", tensor: `${stage?.attention}.${name}`, side });
  const [queries, keys] = [of("query", undefined), of("key", matrix.side)];
  const [q, k] = [/** @type {Rows | null} */ (queries) && rowOf(/** @type {Rows} */ (queries), drawing.lane.row), keys && rowOf(keys, drawing.key)];
  if (!q?.length || q.length !== k?.length) return null;
  const values = q.map((x, i) => x * (k[i] ?? 0));
  const labels = (matrix.side === "source" ? drawing.source : drawing.lane).labels;
  return {
    title: `q · k, number by number: row ${drawing.lane.row} ${visible(drawing.lane.labels[drawing.lane.row] ?? "")}, key ${drawing.key} ${visible(labels[drawing.key] ?? "")}: ${values.length} products, sum ${fixed(values.reduce((sum, x) => sum + x, 0))}`,
    values, tensor: "",
  };
}
