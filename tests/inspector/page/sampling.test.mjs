// The cases of sampling.json were computed with glassformer.inference.sampling.shape_logits.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { choose, descending, entropy, keepTopK, probabilities, shapeLogits, softmax } from "../../../src/glassformer/apps/inspector/page/sampling.js";

const CASES = JSON.parse(readFileSync(new URL("sampling.json", import.meta.url), "utf8"));

for (const [number, { logits, shaped, probabilities: expected, ...sampling }] of CASES.entries()) {
  test(`case ${number} equals Python: ${JSON.stringify(sampling)}, ${logits.length} tokens`, () => {
    const found = shapeLogits(Float32Array.from(logits), sampling);
    shaped.forEach((x, i) => (x === null ? assert.equal(found[i], -Infinity) : assert.ok(Math.abs(found[i] - x) < 1e-3 * Math.max(1, Math.abs(x)))));
    probabilities(Float32Array.from(logits), sampling).forEach((p, i) => assert.ok(Math.abs(p - expected[i]) < 1e-5));
  });
}

test("ties with the k-th logit are kept", () => {
  assert.deepEqual([...keepTopK(Float32Array.of(1, 3, 3, 2), 1)], [-Infinity, 3, 3, -Infinity]);
});

test("probabilities of large logits are finite", () => {
  assert.deepEqual([...softmax(Float32Array.of(1e30, -Infinity))], [1, 0]);
});

test("a token is chosen by the interval of the cumulative distribution", () => {
  const half = Float64Array.of(0.5, 0, 0.5);
  assert.deepEqual([0, 0.49, 0.5, 0.999999, 1].map((x) => choose(half, x)), [0, 0, 2, 2, 2]);
});

test("equal numbers keep their order", () => {
  assert.deepEqual(descending(Float64Array.of(1, 2, 2, 0)), [1, 2, 0, 3]);
});

test("the entropy of a uniform distribution is log n", () => {
  assert.ok(Math.abs(entropy(Float64Array.of(0.25, 0.25, 0.25, 0.25)) - Math.log(4)) < 1e-12);
});
