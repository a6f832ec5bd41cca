// Sentences of the pages: each comparative agrees with the numbers that it is made of, for random numbers.
import assert from "node:assert/strict";
import { test } from "node:test";

const INSPECTOR = "../../../src/glassformer/apps/inspector";
const { byProbability, changeOf, partWords, percent } = await import(`${INSPECTOR}/page/text.js`);
const { QUESTIONS, decision } = await import(`${INSPECTOR}/page/questions.js`);
const { askLeftOut } = await import(`${INSPECTOR}/page/output_questions.js`);
const { stateOf } = await import(`${INSPECTOR}/panels/training.js`);
const { Answer } = await import("../../../src/glassformer/apps/serving/page/answer.js");
const { factsOf } = await import("../../../src/glassformer/apps/serving/page/written.js");

/** Return a function that draws numbers from 0 to 1 (mulberry32). */
function random(seed) {
  let a = seed;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const tokens = (text) => [...text].map((letter) => ({ id: letter.charCodeAt(0), text: letter, bytes: [letter.charCodeAt(0)], is_special: false }));
const question = (title) => QUESTIONS.find((one) => one.title === title);
const DECODER = { kind: "decoder", attention: { decoder: {} }, has_head_over_tokens: true, is_additive: true, labels: [], max_len: 32, architecture: [], end_ids: [] };
const numbersOf = (sentence) => [...sentence.matchAll(/(<?)([\d.]+) %/g)].map(([, less, digits]) => (less ? 0 : Number(digits)));

test("a change has the direction of its numbers, and none if they are shown as equal", () => {
  const draw = random(1);
  for (let i = 0; i < 5000; i++) {
    const [was, is] = [draw() ** (1 + 12 * draw()), draw() ** (1 + 12 * draw())];
    const words = changeOf(was, is);
    const [before, after] = numbersOf(words);
    if (words.startsWith("falls")) assert.ok(is < was && after < before, words);
    else if (words.startsWith("rises")) assert.ok(is > was && after > before, words);
    else assert.ok(words.startsWith("stays") && (Math.abs(is - was) < 0.00101 || after === undefined), words);
  }
  assert.equal(changeOf(0.0004, 0.0006), "rises from <0.1 % to 0.1 %");
  assert.equal(changeOf(0.0004, 0.0001), "stays below 0.1 %");
});

test("a layer is named only if it adds half of the final probability and no later layer takes it away", async () => {
  const draw = random(2);
  const { ask } = question("Why this token?");
  let [nDecided, nLowered] = [0, 0];
  for (let i = 0; i < 300; i++) {
    const [nLayers, text] = [2 + Math.floor(6 * draw()), "ab"];
    const cells = Array.from({ length: nLayers }, () => [...text].map(() => {
      const p = draw() ** 2;
      const top = draw() < 0.7 ? [[1, "x", p], [2, "y", p * draw()]] : [[2, "y", p], [3, "z", p * draw()]];
      return { top: top.sort((a, b) => b[2] - a[2]), next: 0 };
    }));
    for (const cell of cells.at(-1)) cell.top = [[1, "x", 0.3 + 0.6 * draw()], [2, "y", 0.1]];
    const layers = Array.from({ length: nLayers }, (_, l) => (l ? `block ${l - 1}` : "the embedding"));
    const run = { run: "1", target: tokens(text), source: [], written: [], attention: { decoder: {} } };
    const app = { store: { state: { run, model: DECODER } }, data: { json: async () => ({ layers, cells }) } };
    const { seen, means, view } = await ask(app, run);
    const p = cells.map((row) => row[view.pos].top.find(([id]) => id === 1)?.[2]);
    const bound = (l) => p[l] ?? cells[l][view.pos].top.at(-1)[2];
    const [, before] = seen.split(". Before ");
    const layer = layers.findIndex((name, l) => l && before.startsWith(`${name},`));
    const isDecided = (p[layer] ?? 0) - bound(layer - 1) >= p.at(-1) / 2 && p.slice(layer).every((_, i) => bound(layer + i) >= p.at(-1) / 2);
    assert.equal(/ adds at least half/.test(means), isDecided, `${seen} ${means}`);
    if (isDecided) assert.ok(means.startsWith(layers[layer].charAt(0).toUpperCase() + layers[layer].slice(1)));
    nDecided += Number(isDecided);
    const falls = p.map((_, l) => (l > layer ? (p[l - 1] ?? 0) - bound(l) : 0));
    const largest = Math.max(...falls);
    const lower = falls.indexOf(largest);
    const to = p[lower] === undefined ? "below that of the five best tokens" : percent(p[lower]);
    assert.equal(means.includes("a later layer can lower the probability again"), largest >= 0.001, means);
    if (largest >= 0.001) assert.ok(means.endsWith(`: ${layers[lower]} lowers it from ${percent(p[lower - 1])} to ${to}.`), means);
    nLowered += Number(largest >= 0.001);
  }
  assert.ok(nDecided > 30 && nDecided < 270, "both sentences occur");
  assert.ok(nLowered > 30 && nLowered < 270, "with and without a layer that lowers the probability");
  assert.equal(decision(-0.1, 0.4, "block 1", true), "No layer adds half of the final probability.");
});

test("a head matters only if the loss rises without it", async () => {
  const draw = random(3);
  const { ask } = question("What if a head is switched off?");
  for (let i = 0; i < 300; i++) {
    const nHeads = 1 + Math.floor(3 * draw());
    const rows = [Array.from({ length: nHeads }, () => (draw() - 0.7) * draw() ** 3)];
    const run = { run: "1", target: tokens("abc"), source: [], written: [], attention: { decoder: { layers: 1, heads: nHeads } } };
    const was = Array.from({ length: 3 }, () => Math.log(draw() ** 4));
    const is = was.map((x) => Math.min(0, x + 2 * (draw() - 0.5)));
    const positions = (values) => ({ positions: values.map((log_prob, t) => ({ log_prob: t ? log_prob : null })) });
    const app = {
      store: { state: { run, model: DECODER } }, source: {},
      data: { json: async () => ({ decoder: rows, measure: "loss" }), post: async () => ({ before: positions(was), after: positions(is) }) },
    };
    const { seen, means } = await ask(app, run);
    const most = Math.max(...rows[0]);
    assert.equal(means.includes("matters most"), most >= 0.005 && nHeads > 1, means);
    assert.equal(means.startsWith("The model needs none of its heads alone"), most < 0.005, means);
    assert.equal(means.split("Without").length - 1, nHeads === 1 ? 1 : 2, means);
    assert.equal(means.split("the model is better without it").length, means.split("the loss falls").length, means);
    assert.match(means, /The loss is the mean of −log of .*lower is better\.$/);
    for (const [, verb, by] of means.matchAll(/the loss (rises|falls) by ([\d.]+)/g)) {
      const close = rows[0].find((x) => Math.abs(Math.abs(x) - Number(by)) <= 0.00501 && (x > 0) === (verb === "rises"));
      assert.ok(close !== undefined && Number(by) > 0, means);
    }
    const [before, after] = numbersOf(seen);
    if (seen.includes(" falls ")) assert.ok(after < before, seen);
    if (seen.includes(" rises ")) assert.ok(after > before, seen);
    assert.ok(/ (falls from|rises from|stays at|stays below) /.test(seen), seen);
  }
});

test("a word matters only if a probability falls without it", async () => {
  const draw = random(4);
  for (let i = 0; i < 200; i++) {
    const label = (p) => [{ name: "a", probability: p }, { name: "b", probability: 1 - p }];
    const model = { id: "m", kind: "encoder", verb: "classify", labels: ["a", "b"], mask: null };
    const run = { run: "1", source: tokens("x y"), target: [], written: [], labels: label(0.5 + draw() / 2), attention: {} };
    const spread = draw() < 0.5 ? 0.001 : 0.5;
    const app = {
      store: { state: { model, ran: { text: "x y" }, run } }, source: {},
      data: { post: async () => ({ ...run, labels: label(Math.min(1, Math.max(0, run.labels[0].probability + spread * (draw() - 0.5)))) }) },
    };
    const { seen, means } = await askLeftOut(app, run);
    const [before, after] = numbersOf(seen);
    assert.equal(means.includes("matters most"), seen.includes(" falls from "), `${seen} ${means}`);
    assert.equal(means.includes("No probability falls."), !seen.includes(" falls from "));
    if (seen.includes(" falls ")) assert.ok(after < before, seen);
    if (seen.includes(" rises ")) assert.ok(after > before && means.split(" rises ").length > 1, seen);
  }
});

test("a prediction is that of the last token, and the blocks are counted", async () => {
  const draw = random(6);
  for (let nBlocks = 1; nBlocks < 6; nBlocks++) {
    const target = tokens("abc").map((token) => ({ ...token, top: [[1, "x", draw()], [2, "y", 0]] }));
    const model = { ...DECODER, attention: { decoder: { layers: nBlocks, heads: 2 } } };
    const { seen, means, view } = await question("How does the text become a prediction?").ask({ store: { state: { model, run: { target, source: [], written: [] } } } });
    assert.equal(seen, `After the last token, token 2 “c”, the most probable next token is “x”, with ${percent(target[2].top[0][2])}.`);
    assert.ok(means.includes(nBlocks === 1 ? "1 block changes" : `${nBlocks} blocks change `), means);
    assert.deepEqual(view, { panel: "flow", flow: "decoder.0.0.tokens", pos: 2 });
  }
});

test("a part of a model has a name in words", () => {
  const names = ["embedding", "decoder.0.head.3", "decoder.1.feed_forward", "decoder.1", "decoder.1.bias"];
  assert.deepEqual(names.map(partWords), ["the embedding", "head 3 of layer 0 (decoder)", "the feed-forward of layer 1 (decoder)", "layer 1 (decoder)", "the bias of attention of layer 1 (decoder)"]);
});

test("labels are shown by probability", () => {
  const draw = random(5);
  const labels = Array.from({ length: 16 }, (_, i) => ({ name: String(i), probability: draw() }));
  const first = byProbability(labels).slice(0, 8);
  const rest = labels.filter((one) => !first.includes(one));
  assert.ok(Math.min(...first.map((one) => one.probability)) >= Math.max(...rest.map((one) => one.probability)));
  assert.equal(labels[0].name, "0", "the labels of the run keep their order");
});

test("an answer names the limit that ended it", () => {
  const end = (nNew, limit, finish) => factsOf(Object.assign(new Answer("m"), { n_new: nNew, limit, finish }));
  assert.match(end(16, 16, "length"), /ended by the limit of new tokens$/);
  assert.match(end(9, 16, "length"), /ended because the context is full$/);
  assert.doesNotMatch(end(9, 16, "stop"), /ended/);
});

test("a run that was started is not called idle", () => {
  assert.equal(stateOf(true, true), "running");
  assert.equal(stateOf(false, true), "waiting for its process");
  assert.equal(stateOf(false, false), "not running");
});
