// Pure functions of the page: colours, decoding, the address, CSV, text, layouts.
import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

const SERVING = "../../../src/glassformer/apps/inspector";
const [PAGE, PANELS] = [`${SERVING}/page`, `${SERVING}/panels`];
const { colourOf, colourTable, inkOn, luminance, oklch, scalePosition, tokenColour } = await import(`${PAGE}/colours.js`);
const { floats, fromBase64, inflate, parseShape, weights16 } = await import(`${PAGE}/source.js`);
const { DEFAULTS, Store, decodeHash, encodeHash, isAtPosition, mainSide, messagesOf, positionText, selectedPosition, shownPosition } = await import(`${PAGE}/state.js`);
const { toCsv } = await import(`${PAGE}/frame.js`);
const { compact, count, duration, fixed, percent, shortened, signed, visible } = await import(`${PAGE}/text.js`);
const { requireSame, Source, withQuery } = await import(`${PAGE}/source.js`);
const { axisTicks, ticks, binned, curvesTable } = await import(`${PAGE}/charts.js`);
const { strongest, windowAround } = await import(`${PAGE}/lines.js`);
const { poolMax } = await import(`${PAGE}/heatmap.js`);
const { badgeOf } = await import(`${PAGE}/grid.js`);
const { branchAt, chooseNext } = await import(`${PANELS}/steps.js`);
const { effectOf, partNames, partOf, partsOff } = await import(`${PANELS}/ablation.js`);
const { expertWeights } = await import(`${PANELS}/experts.js`);
const { rulesText } = await import(`${PANELS}/next.js`);
const { endsLine } = await import(`${PAGE}/strip.js`);
const { seriesOf, timeLeft, titleOf } = await import(`${PANELS}/training.js`);

test("lightness of the sequential scale is monotone", () => {
  for (const dark of [false, true]) {
    const values = colourTable("sequential", dark).map(luminance);
    const sign = dark ? 1 : -1;
    for (let i = 1; i < values.length; i++) assert.ok(sign * (values[i] - values[i - 1]) > -0.003, `${dark} ${i}`);
  }
});

test("the diverging scale has 0 in the centre, and its ends differ for colour-blind readers", () => {
  assert.equal(scalePosition(0, "diverging", [-1, 4]), 0.5);
  assert.equal(scalePosition(-4, "diverging", [-1, 4]), 0);
  for (const dark of [false, true]) {
    const [low, middle, high] = [-1, 0, 1].map((x) => colourOf(x, "diverging", [-1, 1], dark));
    assert.ok(low[0] > low[2] && high[2] > high[0]);
    assert.ok(Math.abs(luminance(low) - luminance(middle)) > 0.2 && Math.abs(luminance(high) - luminance(middle)) > 0.2);
  }
});

test("text on every colour has a contrast of at least 4.5", () => {
  for (const scale of ["sequential", "diverging"]) for (const dark of [false, true]) for (const colour of colourTable(scale, dark)) {
    const [paper, ink] = [luminance(colour), inkOn(colour) === "#ffffff" ? 1 : 0];
    assert.ok((Math.max(paper, ink) + 0.05) / (Math.min(paper, ink) + 0.05) >= 4.5);
  }
});

test("the ink of a token is the same on all backgrounds, with a contrast of at least 6", () => {
  for (const dark of [false, true]) for (let i = 0; i <= 20; i++) {
    const colour = tokenColour(i / 20, dark);
    assert.equal(inkOn(colour), dark ? "#ffffff" : "#000000");
    assert.ok(dark ? 1.05 / (luminance(colour) + 0.05) >= 6 : (luminance(colour) + 0.05) / 0.05 >= 6);
  }
});

test("white and black of OKLCH", () => {
  assert.deepEqual(oklch(1, 0, 0), [255, 255, 255]);
  assert.deepEqual(oklch(0, 0, 0), [0, 0, 0]);
});

test("bytes of the server are decompressed and decoded", async () => {
  const bytes = new Uint8Array(deflateSync(Buffer.from(new Float32Array([1.5, -2]).buffer)));
  assert.deepEqual([...floats(await inflate(bytes))], [1.5, -2]);
  assert.deepEqual([...weights16(new Uint16Array([9, 0, 65535]).buffer, 1, 2)], [0, 1]);
  assert.deepEqual(parseShape("2,4, 16"), [2, 4, 16]);
  assert.throws(() => parseShape("2,x"));
  assert.deepEqual([...fromBase64("AQID")], [1, 2, 3]);
});

test("damaged bytes are refused", async () => {
  await assert.rejects(inflate(new Uint8Array([1, 2, 3])));
});

test("a state is restored from its address", () => {
  const view = { ...DEFAULTS, text: "a b&c=d#\n↵ 日本", panel: "lens", layer: 2, pos: 0, temperature: 0.35, off: "decoder.0.3" };
  assert.deepEqual(decodeHash(`#${encodeHash(view)}`), view);
});

test("a conversation is read from an address, and other values are none", () => {
  const messages = [{ role: "user", content: "a\n&#=" }, { role: "assistant", content: "" }];
  const view = { ...DEFAULTS, messages: JSON.stringify(messages) };
  assert.deepEqual(messagesOf(decodeHash(encodeHash(view)).messages), messages);
  for (const wrong of ["", "[", "[]", "{}", "null", "[null]", '[{"role":"user"}]', '[{"role":1,"content":"a"}]']) assert.equal(messagesOf(wrong), null, wrong);
});

test("unknown keys and wrong numbers of an address are ignored", () => {
  assert.deepEqual(decodeHash("#__proto__=1&toString=2&layer=x&pos=&%E0=1&text=%E0%A4%A"), { ...DEFAULTS, text: "%E0%A4%A" });
});

test("listeners receive only changed keys", () => {
  const store = new Store({ ...DEFAULTS });
  const calls = [];
  store.subscribe((changed) => calls.push([...changed]));
  store.set({ pos: 3, layer: -1 });
  store.set({ pos: 3 });
  assert.deepEqual(calls, [["pos"]]);
});

test("positions: the selected one, the last one, and the one under the pointer", () => {
  const token = { text: "x" };
  const run = { source: [token], target: [token, token, token], written: [token, token, token] };
  const state = { ...DEFAULTS, run, hover: null, across: null };
  assert.equal(mainSide(state), "target");
  assert.equal(selectedPosition(state), 2);
  assert.equal(selectedPosition({ ...state, pos: 9 }), 2);
  const pair = { ...run, written: [token, token, { ...token, id: 3 }] };
  assert.deepEqual([[3], [4]].map((ids) => selectedPosition({ ...state, run: pair, model: { end_ids: ids } })), [1, 2], "not the position that predicts the end");
  assert.equal(selectedPosition({ ...state, model: { pooling: "first" } }), 0, "a classifier reads the first token");
  assert.equal(selectedPosition({ ...state, model: { pooling: "mean" } }), 2);
  assert.equal(shownPosition({ ...state, pos: 0, hover: { side: "written", index: 1 } }), 1);
  assert.equal(shownPosition({ ...state, pos: 0, hover: { side: "source", index: 1 } }), 0);
  assert.ok(isAtPosition({ side: "written", index: 1 }, "target", 1) && !isAtPosition({ side: "source", index: 1 }, "target", 1));
});

test("CSV quotes commas, quotes, line ends and outer spaces", () => {
  const table = { header: ["a", "b"], rows: [["x,y", 1], ['say "hi"', null], [" the", "\n"]] };
  assert.equal(toCsv(table), 'a,b\r\n"x,y",1\r\n"say ""hi""",\r\n" the","\n"\r\n');
});

test("invisible characters of a token become visible", () => {
  assert.equal(visible(" a\n\tb"), "␣a↵⇥b");
  assert.equal(visible("\u0000\u200b\u202e"), "␀‹200B›‹202E›");
  assert.equal(visible("👨\u200d👩"), "👨\u200d👩", "the joiner of an emoji is not a mark");
  assert.equal(visible("a\u200d"), "a‹200D›");
  assert.equal(visible(""), "∅");
  assert.equal(shortened(" international", 8), "␣intern…");
});

test("numbers are short", () => {
  assert.deepEqual([fixed(-1.23456), fixed(null), fixed(-0.0001), fixed(-Infinity), signed(0.5, 1)], ["−1.235", "–", "0.000", "−∞", "+0.5"]);
  assert.deepEqual([percent(0.5), percent(1e-6), percent(0)], ["50.0 %", "<0.1 %", "0.0 %"]);
  assert.deepEqual([count(1048576), count(2048), duration(3725), duration(75), duration(NaN)], ["1.05 million", "2,048", "1 h 2 min", "1 min 15 s", "–"]);
  assert.deepEqual([compact(38885.2), compact(0.00012), compact(2.5), compact(0)], ["38.9k", "1.2e−4", "2.5", "0"]);
});

test("a query leaves out undefined values", () => {
  assert.equal(withQuery("/api/x", { kind: "a b", layer: undefined, head: 0 }), "/api/x?kind=a%20b&head=0");
});

test("ticks are round and inside the range", () => {
  assert.deepEqual(ticks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticks(2.1, 4.9, 3), [3, 4]);
  assert.deepEqual(ticks(5, 5, 3), [5]);
});

test("curves with different steps share a table", () => {
  const table = curvesTable([{ name: "a", points: [[1, 2], [3, 4]] }, { name: "b", points: [[3, 5]] }]);
  assert.deepEqual(table, { header: ["step", "a", "b"], rows: [[1, 2, null], [3, 4, 5]] });
});

test("long texts are drawn around a position", () => {
  assert.deepEqual([windowAround(10, 3, 20), windowAround(100, 50, 20), windowAround(100, 0, 20), windowAround(100, 99, 20)], [[0, 10], [40, 60], [0, 20], [80, 100]]);
});

test("the strongest lines come first; a row or a column selects", () => {
  const weights = { rows: 2, columns: 2, values: [0.9, 0.1, 0.4, 0.6] };
  const all = { rows: [0, 2], columns: [0, 2], least: 0.2 };
  assert.deepEqual(strongest(weights, all).map((line) => line.weight), [0.9, 0.6, 0.4]);
  assert.deepEqual(strongest(weights, { ...all, row: 1 }).map((line) => line.column), [1, 0]);
  assert.deepEqual(strongest(weights, { ...all, column: 0 }).map((line) => line.row), [0, 1]);
});

test("pooling keeps the largest size of signed numbers", () => {
  const pooled = poolMax([0.1, -0.9, NaN, 0.2], 1, 4, 1, 2);
  assert.deepEqual([...pooled].map((x) => Math.round(10 * x) / 10), [-0.9, 0.2]);
});

test("a badge shows a pattern for which the head is found, the one with the largest excess over uniform attention", () => {
  const uniform = { previous: 0.1, induction: 0.05, first: 0.1, entropy: 2 };
  assert.deepEqual(badgeOf({ previous: 0.9, first: 0.95, entropy: 3 }, uniform, "best", ["previous"]), { name: "previous", value: 0.9 });
  assert.equal(badgeOf({ previous: 0.9, first: null, entropy: 3 }, uniform, "best", []), null, "not on the random tokens");
  assert.deepEqual(badgeOf({ induction: 0.9, first: 0.95 }, { ...uniform, first: 0.9 }, "best", ["first", "induction"]), { name: "induction", value: 0.9 });
  assert.deepEqual(badgeOf({ entropy: 3 }, uniform, "entropy", []), { name: "entropy", value: 3 });
});

test("an answer of another model or run is refused", () => {
  requireSame("/api/run/r1/lens?norm=1", "a@1", { model: "a@1", run: "r1" });
  requireSame("/api/run", "a@1", { model: "a@1", run: "r1" });
  requireSame("/api/session", undefined, {});
  for (const [path, model, names] of [
    ["/api/run/r1/lens?norm=1", "a@1", { model: "a@1", run: "r2" }], ["/api/run/r1/lens", "a@1", { model: "a@2", run: "r1" }],
    ["/api/run", "a@1", { model: "b@1", run: "r1" }], ["/api/run/r1/lens", "a@1", {}],
  ]) assert.throws(() => requireSame(path, model, names), /another model or run/);
});

test("sampling rules are named, and the model's own probabilities have none", () => {
  assert.equal(rulesText({ temperature: 1, top_k: 0, top_p: 1 }), "");
  assert.equal(rulesText({ temperature: 0.7, top_k: 50, top_p: 0.9 }), "temperature 0.7, top-k 50, top-p 0.9");
});

test("titles of logged numbers have units and no names of columns", () => {
  const metrics = { bits_per_byte: "bits per byte", bleu: "BLEU" };
  assert.equal(titleOf("eval/train_bits_per_byte", metrics), "Part of the training data: bits per byte");
  assert.equal(titleOf("mean/valid_bleu", metrics), "Validation: BLEU, of the mean of checkpoints");
  assert.equal(titleOf("eval/valid_other_score", metrics), "Validation: other score");
  assert.equal(titleOf("step_ms", metrics), "Time of a step, milliseconds");
  assert.equal(titleOf("other/some_number", metrics), "other some number");
});

test("a position counts the tokens of the main row", () => {
  const token = (text) => ({ text });
  const decoder = { run: { source: [], target: [token("a"), token("b")], written: [] } };
  const pair = { run: { source: [token("x")], target: [token("<s>"), token("a")], written: [token("a"), token("</s>")] } };
  const encoder = { run: { source: [token("x")], target: [], written: [] } };
  assert.deepEqual([[decoder, 1], [pair, 1], [encoder, 0]].map(([state, i]) => positionText(state, i)), ["after position 1: b", "at row 1: “a” predicts “</s>”", "at position 0: x"]);
});

test("a branch keeps the tokens before its step", () => {
  const branch = { tokens: [{ id: 1, text: "a", log_prob: -1 }, { id: 2, text: "b", log_prob: -1 }], parent: -1, at: 0 };
  const made = branchAt(branch, 0, 1, [7, "c", 1]);
  assert.deepEqual([made.tokens.map(({ id }) => id), made.parent, made.at], [[1, 7], 0, 1]);
});

test("temperature 0 chooses the most probable token", () => {
  const [logits, names] = [Float32Array.of(-Infinity, Math.log(0.6), Math.log(0.4)), ["x", "a", "b"]];
  assert.deepEqual(chooseNext(logits, names, { temperature: 0, top_k: 0, top_p: 1 }, 0.99).slice(0, 2), [1, "a"]);
  const [id, name, p] = chooseNext(logits, names, { temperature: 1, top_k: 0, top_p: 1 }, 0.99);
  assert.deepEqual([id, name], [2, "b"]);
  assert.ok(Math.abs(p - 0.4) < 1e-6);
});

test("a token is chosen from the whole vocabulary", () => {
  const logits = new Float32Array(200);
  assert.equal(chooseNext(logits, [], { temperature: 1, top_k: 0, top_p: 1 }, 0.999)[0], 199);
  assert.equal(chooseNext(logits, [], { temperature: 1, top_k: 0, top_p: 1 }, 0.5026)[0], 100);
});

test("names of parts become parts, and wrong names are ignored", () => {
  assert.deepEqual(partNames("decoder.0.3,decoder.1.ff,x,decoder.2.all,decoder.-1.0"), ["decoder.0.3", "decoder.1.ff", "decoder.2.all"]);
  assert.deepEqual(["cross.0.3", "decoder.1.ff", "encoder.2.all"].map(partOf), ["cross.0.head.3", "decoder.1.feed_forward", "encoder.2"]);
  assert.equal(partsOff("decoder.0.3,x,decoder.1.ff"), "decoder.0.head.3,decoder.1.feed_forward");
  const effects = { decoder: [[0.5]], feed_forward: { decoder: [1] }, layers: { decoder: [2] }, loss: 3 };
  assert.deepEqual(["decoder.0.0", "decoder.0.ff", "decoder.0.all"].map((name) => effectOf(effects, name)), [0.5, 1, 2]);
  assert.ok(Number.isNaN(effectOf(effects, "decoder.9.0")) && Number.isNaN(effectOf(null, "decoder.0.0")));
});

test("logged numbers become series, and the rate gives the time left", () => {
  const series = seriesOf([{ step: 10, "train/loss": 2, step_ms: 100, sample: "x" }, { step: 20, step_ms: 300, "eval/valid_loss": null }]);
  assert.deepEqual([...series.keys()], ["train/loss", "step_ms"]);
  assert.equal(timeLeft(series, 30), 2);
  assert.ok(Number.isNaN(timeLeft(new Map(), 30)));
});

test("an axis has at least two ticks, all inside its range", () => {
  for (const [low, high] of [[0, 0.001], [0.0009, 0.0011], [3.9, 8.2], [0.1, 1], [360, 440], [1, 1.0001], [-0.02, 0.97], [17, 23]]) {
    for (const n of [2, 3.3, 6]) {
      const found = axisTicks(low, high, n);
      assert.ok(found.length >= 2 && found.length <= 2 * n + 3, `${low} ${high} ${n}: ${found}`);
      assert.ok(found.every((x) => x >= low - 1e-9 && x <= high + 1e-9));
    }
  }
});

test("a row of line ends is one line of tokens", () => {
  const items = ["a\n", "\n", "\n", "b", " c", "\n"].map((text) => ({ text }));
  assert.deepEqual(items.map((_, i) => endsLine(items, i)), [false, false, true, false, false, false]);
});

test("the weights of experts have a row per expert, and shares of all choices", () => {
  const { values, shares } = expertWeights([[[2, 0.75], [0, 0.25]], [[2, 0.5], [1, 0.5]]], 4);
  assert.deepEqual([...values], [0.25, 0, 0, 0.5, 0.75, 0.5, 0, 0]);
  assert.deepEqual(shares, [0.25, 0.25, 0.5, 0]);
});

test("a histogram counts each number once, also the largest one", () => {
  assert.deepEqual(binned([1, 2, 2, 3, 5, 5, 5, 5, 5]), { low: 1, high: 5, counts: [1, 2, 1, 5] });
  assert.equal(binned([2, 2]).counts.reduce((sum, n) => sum + n), 2);
});
