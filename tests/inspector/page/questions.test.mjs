// Questions of a first visit: which ones a model has, and the sentences from its numbers.
import assert from "node:assert/strict";
import { test } from "node:test";

const PAGE = "../../../src/glassformer/apps/inspector/page";
const { PATTERNS, QUESTIONS, clearest, questionsOf, repeated } = await import(`${PAGE}/questions.js`);
const { beginsOfWords, wordsOf } = await import(`${PAGE}/output_questions.js`);
const { headColour, layerLines, cellOf, tokenOf, MAX_LINES } = await import(`${PAGE}/lines.js`);

const EVERYTHING = { answers: () => true };
const DECODER = { kind: "decoder", attention: { decoder: {} }, has_head_over_tokens: true, is_additive: true, labels: [], max_len: 32, architecture: [] };
const tokens = (text) => [...text].map((letter) => ({ id: letter.charCodeAt(0), text: letter }));
const titles = (model, source = EVERYTHING) => questionsOf(model, source).map(({ title }) => title);

test("the questions follow from the abilities of a model", () => {
  const [reads, aligned, gate, mask, off, why] = ["Which token does this one look at?", "From which source token is this target token?", "What does a gate keep?", "What does the mask hide?", "What if a head is switched off?", "Why this token?"];
  const [part, leftOut, sure, unexpected] = ["Which part writes this token?", "What if a word is left out?", "How sure is the model?", "Which token did the model not expect?"];
  const becomes = "How does the text become a prediction?";
  assert.deepEqual(titles(DECODER), [becomes, reads, mask, off, why, part, sure, unexpected]);
  assert.deepEqual(titles({ ...DECODER, is_additive: false }), [becomes, reads, mask, off, why, sure, unexpected]);
  const encoder = { ...DECODER, kind: "encoder", verb: "fill", attention: { encoder: {} } };
  assert.deepEqual(titles(encoder), [reads, off, why, leftOut, sure, unexpected]);
  assert.deepEqual(titles({ ...DECODER, kind: "encoder-decoder", attention: { encoder: {}, decoder: {}, cross: {} } }), [aligned, reads, mask, off, why, sure, unexpected]);
  const recurrent = (cell) => ({ ...DECODER, kind: "recurrent", is_additive: false, attention: { cross: {} }, architecture: [{ title: "Model", rows: [["cell", cell]] }] });
  assert.deepEqual(titles(recurrent("rnn")), [aligned, leftOut, sure, unexpected]);
  assert.deepEqual(titles(recurrent("lstm")), [aligned, gate, leftOut, sure, unexpected]);
  const classifier = { ...encoder, verb: "classify", has_head_over_tokens: false, labels: ["a", "b"] };
  assert.deepEqual(titles(classifier), [reads, off, leftOut, sure]);
  assert.deepEqual(titles(classifier, { answers: (route) => route !== "/flow" && route !== "/effects" }), [reads, leftOut], "a file has only what it can answer");
});

test("a pattern names the key at which its head looks", () => {
  const ids = [5, 6, 7, 5, 6];
  const keys = Object.fromEntries(PATTERNS.map(({ name, key }) => [name, ids.map((_, t) => key(ids, t))]));
  assert.deepEqual(keys, { induction: [-1, -1, -1, 1, 2], duplicate: [-1, -1, -1, 0, 1], previous: [-1, 0, 1, 2, 3], first: [-1, 0, 0, 0, 0] });
  const values = [1, 0, 0, 0.2, 0.8, 0, 0.1, 0.1, 0.8];
  assert.deepEqual(clearest({ rows: 3, columns: 3, values }, (t) => t - 1), { row: 1, column: 0, weight: 0.2 });
});

test("an induction head is answered with its token, its weight and its name", async () => {
  const run = { run: "1", target: tokens("ab|ab"), source: [], written: [], attention: { decoder: { layers: 2, heads: 1, rows: "target", columns: "target" } } };
  const values = new Float32Array(25);
  values[3 * 5 + 1] = 0.75; // the second a reads the b after the first one
  const answers = { scores: { ranked: [{ name: "previous", kind: "decoder", layer: 0, head: 0, is_found: true }, { name: "induction", kind: "decoder", layer: 1, head: 0, is_found: true }], kinds: {} } };
  const app = { store: { state: { run, model: DECODER } }, data: { json: async (_run, what) => answers[what], head: async () => ({ rows: 5, columns: 5, values }) } };
  const found = await QUESTIONS.find(({ title }) => title === "Which token does this one look at?").ask(app, run);
  assert.equal(found.seen, "Row 3 of this attention map has a frame and belongs to token 3 “a”. It puts 75.0 % of its weight on token 1 “b”.");
  assert.match(found.means, /induction head/);
  assert.deepEqual(found.view, { panel: "attention", kind: "decoder", layer: 1, head: 0, shown: "matrix", pos: 3 });
  assert.deepEqual(found.lit, { hover: { side: "target", index: 3 }, across: { side: "target", index: 1 } });
});

test("a text without a repetition is asked about twice, as far as it fits", () => {
  const state = (text, model = DECODER) => ({ model, text, run: { target: tokens(text) } });
  assert.deepEqual(repeated(state("abc")), { text: "abc abc" });
  assert.equal(repeated(state("ab|ab")), null);
  assert.equal(repeated(state("abc", { ...DECODER, kind: "encoder" })), null);
  assert.ok(repeated(state("abcdefghijklmnopqrstuvwxyz")).text.length <= DECODER.max_len);
});

test("a word is left out with the space before or after it, and begins at its first token", () => {
  assert.deepEqual(wordsOf("a [MASK] bc").map(({ text, rest }) => [text, rest]), [["a", "[MASK] bc"], ["bc", "a [MASK] "]]);
  assert.deepEqual(wordsOf("abc").map(({ text, rest }) => [text, rest]), [["a", "bc"], ["b", "ac"], ["c", "ab"]]);
  const token = (text, is_special = false) => ({ bytes: [...new TextEncoder().encode(text)], is_special });
  assert.deepEqual(beginsOfWords([token("ab"), token("c"), token(" d"), token("e")], 2), [0, 2]);
  assert.deepEqual(beginsOfWords([token("", true), token("ab "), token("", true), token("cd ")], 2), [1, 3]);
  assert.equal(beginsOfWords([token("", true), token("b ")], 2), null, "an unknown word has no bytes");
});

test("the lines of all layers are bounded, and each layer has its share", () => {
  const [layers, heads, n] = [12, 12, 48];
  const buffer = new Uint8Array(layers * heads * n * n).fill(20).buffer;
  const thumbnails = { shape: [layers, heads, n, n], buffer };
  new Uint8Array(buffer)[(5 * heads + 3) * n * n + 7 * n + 2] = 255;
  const lines = layerLines(thumbnails, {});
  assert.ok(lines.length <= MAX_LINES && new Set(lines.map(({ layer }) => layer)).size === layers);
  assert.deepEqual(lines.find(({ weight }) => weight === 1), { layer: 5, head: 3, row: 7, column: 2, weight: 1 });
  const chosen = layerLines(thumbnails, { row: 7, head: 3 });
  assert.ok(chosen.length > layers && chosen.every(({ row, head }) => row === 7 && head === 3));
  assert.equal(new Set(Array.from({ length: 16 }, (_, head) => headColour(head, 16, false))).size, 16);
  assert.deepEqual([tokenOf(1, 48, 96), cellOf(95, 48, 96), cellOf(2, 5, 5)], [2, 47, 2]);
  for (const tokens of [48, 50, 96, 100, 128]) for (let place = 0; place < 48; place++) assert.equal(cellOf(tokenOf(place, 48, tokens), 48, tokens), place);
});
