/**
 * Formulas of the flow, filled in with the numbers of one token.
 *
 * @import { Stage } from "./stages.js"
 * @import { Rows } from "./flow_scene.js"
 *
 * @typedef {{
 *   stage: Stage, row: number, key: number, row_label: string, key_labels: string[], scale: number | null,
 *   rows: (tensor: string, side?: "source" | "target") => Rows | null, bars: {label: string, value: number}[],
 * }} Numbers
 */

import { rowOf } from "./flow_scene.js";
import { fixed, percent, visible } from "./text.js";

const TERMS = 4;

/** Return the `n` values of the largest magnitude, with their indices. @param {ArrayLike<number>} values @param {number} n */
export function largest(values, n) {
  return Array.from(values, (value, i) => ({ i, value })).sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, n);
}

/** Return q·k as its largest products and their sum. @param {ArrayLike<number>} q @param {ArrayLike<number>} k */
export function dotProduct(q, k) {
  const products = Array.from(q, (x, i) => x * (k[i] ?? 0));
  const sum = products.reduce((total, x) => total + x, 0);
  const terms = largest(products, TERMS).map(({ i }) => `${fixed(q[i], 2)}·${fixed(k[i], 2)}`);
  return { sum, text: `${terms.join(" + ")}${products.length > TERMS ? " + …" : ""}` };
}

/** Return mean and standard deviation. @param {ArrayLike<number>} values */
export function moments(values) {
  const list = Array.from(values);
  const mean = list.reduce((sum, x) => sum + x, 0) / list.length;
  return { mean, deviation: Math.sqrt(list.reduce((sum, x) => sum + (x - mean) ** 2, 0) / list.length) };
}

/** @param {ArrayLike<number>} values */
function listed(values) {
  const shown = Array.from(values).slice(0, 6).map((x) => fixed(x, 2));
  return `(${shown.join(", ")}${values.length > 6 ? ", …" : ""})`;
}

/** Return lines of text: the formula of a stage with the numbers of the chosen token, and of the chosen key. @param {Numbers} numbers */
export function numberLines(numbers) {
  const { stage } = numbers;
  if (stage.id === "output") return numbers.bars.slice(0, 3).map(({ label, value }) => `p(${visible(label)}) = ${percent(value)}`);
  if (stage.id.endsWith(".scores")) return scoreLines(numbers);
  const mix = stage.columns.find((column) => column.kind === "lines");
  const lines = mix?.tensor ? [mixLine(numbers, mix.tensor)] : [];
  if (stage.id.endsWith("norm")) lines.push(...normLines(numbers));
  if (stage.id === "ff") lines.push(...neuronLines(numbers));
  for (const column of stage.columns) {
    const rows = column.kind === "vector" && column.tensor && (column.side !== "source" || numbers.key >= 0) ? numbers.rows(column.tensor, column.side) : null;
    if (!rows) continue;
    const [token, label] = column.side === "source" ? [numbers.key, numbers.key_labels[numbers.key] ?? ""] : [numbers.row, numbers.row_label];
    const values = rowOf(rows, token);
    const length = fixed(Math.hypot(...values), 2);
    if (values.length) lines.push(`${column.title} of ${visible(label)} = ${listed(values)}; ${values.length} numbers, length ${length}`);
  }
  return lines;
}

/** Name a token by its number and its text. @param {string[]} labels @param {number} i */
const named = (labels, i) => `${i} ${visible(labels[i] ?? "")}`;

/** @param {Numbers} numbers */
function scoreLines({ stage, row, key, row_label, key_labels, scale, rows }) {
  const [here, side] = [stage.attention ?? "", stage.columns.find((column) => column.kind === "matrix")?.side];
  const [queries, keys, scores, weights] = [rows(`${here}.query`), rows(`${here}.key`, side), rows(`${here}.scores`), rows(`${here}.weights`)];
  if (!queries || !keys || !scores || !weights || key < 0) return [];
  const [q, k] = [rowOf(queries, row), rowOf(keys, key)];
  const [score, weight] = [rowOf(scores, row)[key] ?? NaN, rowOf(weights, row)[key] ?? NaN];
  const lines = k.length ? productLines(q, k, scale, score) : [`${named(key_labels, key)} is outside of the part that is shown: score = ${fixed(score, 3)}`];
  if (k.length) lines[0] = `q(${row} ${visible(row_label)}) · k(${named(key_labels, key)}) = ${lines[0]}`;
  if (weight === 0) return [...lines, "weight = 0: the mask hides this token"];
  const all = Array.from(rowOf(scores, row)).filter((_, j) => rowOf(weights, row)[j] !== 0);
  const total = all.reduce((one, x) => one + Math.exp(x - score), 0);
  return [...lines, `weight = exp(${fixed(score, 2)}) / Σ exp(score) over ${all.length} ${all.length === 1 ? "token" : "tokens"} = 1 / Σ exp(score − ${fixed(score, 2)}) = 1 / ${fixed(total, 3)} = ${fixed(weight, 3)}`];
}

/**
 * Return q·k with its sum, and the score with the scale and, if the model has one, the bias of the position.
 * @param {Float32Array} q
 * @param {Float32Array} k
 * @param {number | null} scale in place of 1 / √d
 * @param {number} score
 */
function productLines(q, k, scale, score) {
  const { sum, text } = dotProduct(q, k);
  const bias = score - sum * (scale ?? 1 / Math.sqrt(q.length));
  const product = scale === null ? `${fixed(sum, 3)} / √${q.length}` : `${fixed(sum, 3)} · ${fixed(scale, 3)}`;
  return [`${text} = ${fixed(sum, 3)}`, `score = ${product}${Math.abs(bias) > 1e-3 ? ` + ${fixed(bias, 3)}` : ""} = ${fixed(score, 3)}`];
}

/** @param {Numbers} numbers @param {string} tensor */
function mixLine({ row, key_labels, rows }, tensor) {
  const weights = rows(tensor);
  if (!weights) return "";
  const own = rowOf(weights, row);
  const terms = largest(own, TERMS).filter(({ value }) => value > 0.005).map(({ i, value }) => `${fixed(value, 2)} · v(${named(key_labels, i)})`);
  return `context = ${terms.join(" + ")}${own.length > terms.length ? " + …" : ""}`;
}

/** @param {Numbers} numbers */
function normLines({ stage, row, rows }) {
  const tensor = stage.columns.find((column) => column.kind === "vector")?.tensor ?? "";
  const [before, after] = [rows(`${tensor}.input`), rows(tensor)];
  if (!before || !after) return [];
  const [x, y] = [moments(rowOf(before, row)), moments(rowOf(after, row))];
  return [
    `x: mean ${fixed(x.mean, 3)}, standard deviation ${fixed(x.deviation, 3)}`,
    `y: mean ${fixed(y.mean, 3)}, standard deviation ${fixed(y.deviation, 3)}`,
  ];
}

/** @param {Numbers} numbers */
function neuronLines({ stage, row, rows }) {
  const tensor = stage.columns.find((column) => column.title === "neurons")?.tensor ?? "";
  const neurons = rows(tensor);
  if (!neurons) return [];
  const strongest = largest(rowOf(neurons, row), 8).map(({ i, value }) => `${i}: ${fixed(value, 2)}`);
  return [`strongest neurons: ${strongest.join(", ")}`];
}
