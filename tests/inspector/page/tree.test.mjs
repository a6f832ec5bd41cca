import assert from "node:assert/strict";
import { test } from "node:test";

import { lengthPenalty, pathTo, ranked, rowsBefore, spread, treeRows } from "../../../src/glassformer/apps/inspector/panels/beam.js";

const node = (id, parent, step, log_prob, state = "kept") => ({
  id, parent, log_prob, state, token: String(id), token_id: id, step_log_prob: -1, length: step,
});
const NODES = [node(0, null, 0, 0, "root"), node(1, 0, 1, -1), node(2, 0, 1, -2), node(3, 1, 2, -4), node(4, 2, 2, -3), node(5, 1, 2, -5, "pruned")];

test("edges between two steps never cross", () => {
  const { rows } = treeRows(NODES);
  const edges = NODES.filter(({ length }) => length === 2).map(({ id, parent }) => [rows.get(parent), rows.get(id)]);
  for (const [a, b] of edges) for (const [c, d] of edges) assert.ok((a - c) * (b - d) >= 0);
});

test("nodes of a step do not overlap, and no row is negative", () => {
  const { rows, height } = treeRows(NODES);
  const places = [3, 4, 5].map((id) => rows.get(id)).sort((a, b) => a - b);
  assert.ok(places[1] - places[0] >= 1 && places[2] - places[1] >= 1);
  assert.ok([...rows.values()].every((row) => row >= 0 && row < height));
});

test("a chain is a straight line", () => {
  const { rows, height } = treeRows([node(0, null, 0, 0), node(1, 0, 1, -1), node(2, 1, 2, -2)]);
  assert.deepEqual([...rows.values()], [0, 0, 0]);
  assert.equal(height, 1);
});

test("colliding places form a block around their mean", () => {
  assert.deepEqual(spread([0, 0, 0]), [-1, 0, 1]);
  assert.deepEqual(spread([0, 5]), [0, 5]);
  assert.deepEqual(spread([0, 0, 1.2, 9]).map((x) => Math.round(10 * x) / 10), [-0.6, 0.4, 1.4, 9]);
});

test("length penalties equal those of Python", () => {
  assert.equal(lengthPenalty(7, 1, "gnmt"), 2);
  assert.equal(lengthPenalty(7, 1, "average"), 7);
  assert.equal(lengthPenalty(7, 0, "gnmt"), 1);
});

test("a larger penalty prefers longer results, and unfinished ones rank last", () => {
  const nodes = new Map([[1, { ...node(1, 0, 1, -2), length: 2 }], [2, { ...node(2, 0, 1, -3), length: 8 }], [3, { ...node(3, 0, 1, -1), length: 2 }]]);
  const results = [[1, -2, true], [2, -3, true], [3, -1, false]].map(([id, log_prob, ended]) => ({ node: id, text: "", log_prob, score: 0, ended }));
  assert.deepEqual(ranked(results, nodes, 0, "gnmt").map((x) => x.node), [1, 2, 3]);
  assert.deepEqual(ranked(results, nodes, 1, "gnmt").map((x) => x.node), [2, 1, 3]);
});

test("a path contains the node and all nodes above it", () => {
  assert.deepEqual([...pathTo(new Map(NODES.map((one) => [one.id, one])), 4)], [4, 2, 0]);
});

test("the rows of the first steps", () => {
  const node = (id, parent, length) => ({ id, parent, length, token: "", token_id: 0, log_prob: -id, step_log_prob: -1, state: "kept" });
  const nodes = [node(0, null, 0), node(1, 0, 1), node(2, 0, 1), ...Array.from({ length: 8 }, (_, i) => node(3 + i, 1, 2))];
  const { rows, height } = treeRows(nodes);
  assert.deepEqual(rowsBefore(nodes, rows, 9), [0, height - 1]);
  const [first, last] = rowsBefore(nodes, rows, 2);
  assert.ok(first > 2 && last - first === 1, "rows above these are empty in the first columns");
});
