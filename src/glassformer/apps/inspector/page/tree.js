/**
 * Layout of a tree from left to right, and length penalties of beam search.
 *
 * @import { BeamNode, BeamResult } from "../panels/beam.js"
 */

/**
 * Return the divisor of log p: ((5 + n) / 6)^a (Wu 2016), or n^a. It equals `glassformer.inference.search.length_penalty`.
 * @param {number} length
 * @param {number} exponent
 * @param {string} formula "gnmt" or "average"
 */
export function lengthPenalty(length, exponent, formula) {
  return (formula === "gnmt" ? (5 + length) / 6 : length) ** exponent;
}

/**
 * Rank results: those that ended first, then by score = log p / penalty.
 * @param {BeamResult[]} results
 * @param {Map<number, BeamNode>} nodes
 * @param {number} exponent
 * @param {string} formula
 * @returns {(BeamResult & {length: number})[]}
 */
export function ranked(results, nodes, exponent, formula) {
  return results
    .map((result) => {
      const length = nodes.get(result.node)?.length ?? 1;
      return { ...result, length, score: result.log_prob / lengthPenalty(length, exponent, formula) };
    })
    .sort((a, b) => Number(b.ended) - Number(a.ended) || b.score - a.score);
}

/**
 * Return the row of each node, for a tree whose columns are steps. No two edges cross: the nodes of a step have the order
 * of their parents, and the children of a node are sorted by log-probability.
 * @param {BeamNode[]} nodes parents before their children
 * @returns {{rows: Map<number, number>, height: number}} rows from 0; the number of rows
 */
export function treeRows(nodes) {
  /** @type {Map<number, number>} */
  const rows = new Map();
  /** @type {Map<number, BeamNode[]>} */
  const steps = new Map();
  for (const node of nodes) steps.set(node.length, [...(steps.get(node.length) ?? []), node]);
  const parentRow = (/** @type {BeamNode} */ node) => rows.get(node.parent ?? -1) ?? 0;
  for (const step of [...steps.keys()].sort((a, b) => a - b)) {
    const column = /** @type {BeamNode[]} */ (steps.get(step));
    column.sort((a, b) => parentRow(a) - parentRow(b) || b.log_prob - a.log_prob);
    const wanted = column.map((node) => {
      const siblings = column.filter((other) => other.parent === node.parent);
      return parentRow(node) + siblings.indexOf(node) - (siblings.length - 1) / 2;
    });
    spread(wanted).forEach((row, i) => rows.set(/** @type {BeamNode} */ (column[i]).id, row));
  }
  const first = Math.min(0, ...rows.values());
  for (const [id, row] of rows) rows.set(id, row - first);
  return { rows, height: Math.max(0, ...rows.values()) + 1 };
}

/**
 * Return the first and the last row of the nodes before a step.
 * @param {BeamNode[]} nodes
 * @param {Map<number, number>} rows of `treeRows`
 * @param {number} steps
 * @returns {[number, number]}
 */
export function rowsBefore(nodes, rows, steps) {
  const shown = nodes.filter((node) => node.length < steps || node.parent === null).map((node) => rows.get(node.id) ?? 0);
  return [Math.min(...shown), Math.max(...shown)];
}

/**
 * Move sorted rows apart so that neighbours differ by 1 or more, with a small total shift. Rows that collide form a
 * block, which is centred on the mean of the wanted rows.
 * @param {number[]} wanted
 * @returns {number[]}
 */
export function spread(wanted) {
  /** @type {{sum: number, size: number}[]} `sum` is the sum of the first rows that the members want */
  const blocks = [];
  const start = (/** @type {{sum: number, size: number}} */ block) => block.sum / block.size;
  for (const place of wanted) {
    let block = { sum: place, size: 1 };
    for (let last = blocks.at(-1); last && start(last) + last.size > start(block); last = blocks.at(-1)) {
      blocks.pop();
      block = { sum: last.sum + block.sum - block.size * last.size, size: last.size + block.size };
    }
    blocks.push(block);
  }
  return blocks.flatMap((block) => Array.from({ length: block.size }, (_, i) => start(block) + i));
}

/**
 * Return the ids of a node and all of its ancestors.
 * @param {Map<number, BeamNode>} nodes
 * @param {number} id
 * @returns {Set<number>}
 */
export function pathTo(nodes, id) {
  const path = new Set();
  for (let node = nodes.get(id); node; node = node.parent === null ? undefined : nodes.get(node.parent)) path.add(node.id);
  return path;
}
