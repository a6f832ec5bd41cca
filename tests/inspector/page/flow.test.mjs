// The flow: stages from the names of tensors, the layout of the picture, and formulas with numbers.
import assert from "node:assert/strict";
import { test } from "node:test";

const SERVING = "../../../src/glassformer/apps/inspector";
const [PAGE, PANELS] = [`${SERVING}/page`, `${SERVING}/panels`];
const { blocksOf, headsOf, keyHead, stacksOf, stagesOf, withoutNorms } = await import(`${PAGE}/stages.js`);
const { SHOWN, columnLayout, flowScene, laneOf, pooled, rowOf } = await import(`${PAGE}/flow_scene.js`);
const { dotProduct, largest, moments, numberLines } = await import(`${PAGE}/flow_numbers.js`);
const { clearestHead } = await import(`${PAGE}/grid.js`);
const { readPlace } = await import(`${PANELS}/flow.js`);

/** Names and shapes of a block with the norm before its sublayers. */
function block(path, parts = ["self_attn", "ff"], isPre = true) {
  return parts.flatMap((part) => {
    const here = `${path}.${part}`;
    const norm = [[`${here}_norm.input`, [5, 16]], [`${here}_norm`, [5, 16]]];
    const attention = ["query", "key", "value", "scores", "weights", "context"].map((name) => [`${here}.${name}`, name === "key" || name === "value" ? [2, 5, 4] : [4, 5, 4]]);
    const own = [...(part === "ff" ? [[`${here}.activations`, [5, 32]]] : attention), [here, [5, 16]]];
    return isPre ? [...norm, ...own] : [...own, ...norm];
  }).concat([[`${path}.residual`, [5, 16]]]);
}

const DECODER = {
  config: { activation: "gelu", norm: "rmsnorm" }, formulas: { decoder: "weights = softmax(q·kᵀ / √d)" },
  tensors: [["decoder.embeddings", [5, 16]], ...block("decoder.blocks.0"), ...block("decoder.blocks.1"), ...block("decoder.blocks.2"), ["decoder.final_norm", [5, 16]], ["decoder.final", [5, 16]], ["hidden", [5, 16]]],
};
const ids = (flow, place) => stagesOf(flow, place).map(({ id }) => id);
const NORMAL = ["self_attn.norm", "self_attn.heads", "self_attn.scores", "self_attn.values", "ff.norm", "ff"];

test("a decoder has the stages of one opened block, and its other blocks are folded", () => {
  assert.deepEqual(stacksOf(DECODER), ["decoder"]);
  assert.equal(blocksOf(DECODER, "decoder"), 3);
  assert.deepEqual(ids(DECODER, { stack: "decoder", block: 1 }), ["tokens", "embedding", ...NORMAL, "final", "output"]);
  const folds = stagesOf(DECODER, { stack: "decoder", block: 1 }).flatMap(({ columns }) => columns.filter(({ kind }) => kind === "fold"));
  assert.deepEqual(folds.map(({ title, block: opens }) => [title, opens]), [["block 0", 0], ["block 2", 2]]);
  assert.equal(stagesOf(DECODER, { stack: "decoder", block: 2 }).flatMap(({ columns }) => columns).find(({ kind }) => kind === "fold").title, "blocks 0–1");
});

test("each vector of a stage is a tensor of the model", () => {
  const known = new Set(DECODER.tensors.map(([name]) => name));
  for (const { columns } of stagesOf(DECODER, { stack: "decoder", block: 1 })) {
    for (const { tensor } of columns) assert.ok(tensor === undefined || known.has(tensor), tensor);
  }
});

test("a norm after the sublayer is a column of its sum", () => {
  const flow = { ...DECODER, tensors: [["encoder.embeddings", [5, 16]], ...block("encoder.blocks.0", ["self_attn", "ff"], false), ["encoder.final", [5, 16]]] };
  assert.deepEqual(ids(flow, { stack: "encoder", block: 0 }), ["tokens", "embedding", ...NORMAL.filter((id) => !id.endsWith("norm")), "final", "output"]);
  const values = stagesOf(flow, { stack: "encoder", block: 0 }).find(({ id }) => id === "self_attn.values");
  assert.equal(values.columns.at(-1).tensor, "encoder.blocks.0.self_attn_norm");
});

test("blocks with one norm, and with norms of outputs only, have no column without a tensor", () => {
  const without = (...endings) => DECODER.tensors.filter(([name]) => !endings.some((end) => name.endsWith(end)));
  const shared = { ...DECODER, config: { norm_order: "parallel_shared" }, tensors: without("ff_norm", "ff_norm.input") };
  const outputs = DECODER.tensors.map(([name, shape]) => [name.replace(/(attn|ff)_norm/, "$1_out_norm"), shape]);
  const expected = { shared: NORMAL.filter((id) => id !== "ff.norm"), outputs: NORMAL.filter((id) => !id.endsWith("norm")) };
  for (const [name, flow] of Object.entries({ shared, outputs: { ...DECODER, config: { norm_order: "output" }, tensors: outputs } })) {
    const known = new Set(flow.tensors.map(([tensor]) => tensor));
    assert.deepEqual(ids(flow, { stack: "decoder", block: 1 }), ["tokens", "embedding", ...expected[name], "final", "output"]);
    const columns = stagesOf(flow, { stack: "decoder", block: 1 }).flatMap((stage) => stage.columns);
    for (const { tensor, title } of columns) assert.ok(tensor === undefined || known.has(tensor), `${title}: ${tensor}`);
    assert.ok(!columns.some(({ title }) => title.startsWith("norm(x")));
  }
});

test("the decoder of a pair has cross-attention, whose keys belong to the source, and only it predicts", () => {
  const parts = ["self_attn", "cross_attn", "ff"];
  const flow = { ...DECODER, tensors: [["encoder.embeddings", [4, 16]], ...block("encoder.blocks.0"), ["encoder.final", [4, 16]], ["decoder.embeddings", [5, 16]], ...block("decoder.blocks.0", parts), ["decoder.final", [5, 16]]] };
  assert.deepEqual(stacksOf(flow), ["encoder", "decoder"]);
  assert.ok(!ids(flow, { stack: "encoder", block: 0 }).includes("output"));
  const stages = stagesOf(flow, { stack: "decoder", block: 0 });
  assert.ok(ids(flow, { stack: "decoder", block: 0 }).includes("cross_attn.scores"));
  const sides = stages.find(({ id }) => id === "cross_attn.heads").columns.map(({ title, side }) => [title, side]);
  assert.deepEqual(sides, [["q", undefined], ["source", "source"], ["encoder", "source"], ["s", "source"], ["k", "source"], ["v", "source"]]);
  assert.ok(!stages.find(({ id }) => id === "cross_attn.scores").columns.some(({ rule }) => rule === "masked"), "the source is not hidden");
});

test("without norms, each norm is a part of the stage that reads it, or of the last one", () => {
  const stages = stagesOf(DECODER, { stack: "decoder", block: 1 });
  const joined = withoutNorms(stages);
  assert.deepEqual(joined.map(({ id }) => id), ["tokens", "embedding", ...NORMAL.filter((id) => !id.endsWith("norm")), "output"]);
  assert.deepEqual(joined.flatMap(({ columns }) => columns), stages.flatMap(({ columns }) => columns), "no column is lost");
  assert.deepEqual(withoutNorms(stages.slice(0, -1)).at(-1).also, ["ff.norm", "ff", "final"]);
});

test("recurrent cells show their gates; attention comes where it is computed", () => {
  const gates = ["reset", "keep", "new"].map((name) => [`decoder.cells.0.${name}`, [5, 8]]);
  const attention = ["scores", "weights", "context"].map((name) => [`decoder.cross_attn.${name}`, [1, 5, 4]]);
  const read = [["encoder.embeddings", [4, 8]], ["encoder.cells.0.forward.keep", [4, 8]], ["encoder.cells.0.backward.keep", [4, 8]], ["encoder.memory", [4, 16]], ["decoder.embeddings", [5, 8]]];
  const of = (names) => ({ config: { cell: "gru" }, formulas: { cross: "weights = softmax(vᵀ tanh(W q + U k))" }, tensors: [...read, ...names, ["hidden", [5, 8]]] });
  const before = of([...attention, ...gates, ["decoder.hidden", [5, 8]]]);
  const after = of([...gates, ["decoder.hidden", [5, 8]], ...attention]);
  assert.deepEqual(ids(before, { stack: "decoder", block: 0 }), ["tokens", "embedding", "alignment", "cell0", "output"]);
  assert.deepEqual(ids(after, { stack: "decoder", block: 0 }), ["tokens", "embedding", "cell0", "alignment", "output"]);
  assert.deepEqual(stagesOf(before, { stack: "decoder", block: 0 })[3].columns.map(({ title }) => title), ["z", "r", "n", "s"]);
  const [, , forward, backward] = stagesOf(before, { stack: "encoder", block: 0 });
  assert.deepEqual([forward.columns[0].is_reversed, backward.columns[0].is_reversed], [false, true]);
  const reversed = { ...before, config: { ...before.config, reverse_source: true } };
  assert.equal(stagesOf(reversed, { stack: "encoder", block: 0 })[2].columns[0].is_reversed, true);
});

test("key-value heads serve groups of query heads", () => {
  assert.equal(headsOf(DECODER, "decoder.blocks.0.self_attn"), 4);
  assert.deepEqual([0, 1, 2, 3].map((head) => keyHead(DECODER, "decoder.blocks.0.self_attn", head)), [0, 0, 1, 1]);
});

test("a place is read from the address", () => {
  assert.deepEqual(readPlace("decoder.2.1.self_attn.scores"), { stack: "decoder", block: 2, head: 1, stage: "self_attn.scores" });
  assert.deepEqual(readPlace(""), { stack: "", block: 0, head: 0, stage: "" });
  assert.deepEqual(readPlace("decoder.x.-1"), { stack: "decoder", block: 0, head: 0, stage: "" });
});

test("the head whose rows differ most is the clearest one", () => {
  const heads = [[255, 0, 255, 0], [128, 127, 127, 128], [204, 51, 51, 204]];
  const thumbnails = (list) => ({ shape: [list.length / 3, 3, 2, 2], buffer: Uint8Array.from(list.flat()).buffer });
  assert.deepEqual(clearestHead(thumbnails(heads)), { block: 0, head: 2 });
  assert.deepEqual(clearestHead(thumbnails([...heads, ...heads.slice(1), [255, 0, 0, 255]])), { block: 1, head: 2 });
});

test("strips are means of neighbours, and short vectors are shown whole", () => {
  assert.deepEqual(pooled([1, 3, 5, 7], 2), [2, 6]);
  assert.deepEqual(pooled([1, 2, 3], 24), [1, 2, 3]);
  assert.equal(pooled(Array.from({ length: 100 }, () => 1), 24).length, 24);
});

test("a long text is shown in part, around the chosen token", () => {
  const lane = laneOf("target", Array.from({ length: 100 }, String), 50);
  assert.equal(lane.to - lane.from, SHOWN);
  assert.ok(lane.from <= 50 && 50 < lane.to);
  const rows = { values: Float32Array.of(1, 2, 3, 4), columns: 2, first: 7 };
  assert.deepEqual([6, 7, 8, 9].map((token) => [...rowOf(rows, token)]), [[], [1, 2], [3, 4], []], "rows 7 and 8 are loaded");
});

test("columns do not overlap; a wide picture keeps the current sublayer open", () => {
  const parts = ["self_attn", "cross_attn", "ff"];
  const wide = { ...DECODER, tensors: [["encoder.embeddings", [4, 16]], ["decoder.embeddings", [5, 16]], ...block("decoder.blocks.0", parts), ...block("decoder.blocks.1", parts), ["decoder.final", [5, 16]]] };
  const stages = stagesOf(wide, { stack: "decoder", block: 0 });
  const [lane, source] = [laneOf("target", Array(14).fill("a"), 0), laneOf("source", Array(14).fill("b"), 0)];
  const layout = (id, alone = false) => columnLayout({ alone, stages, current: stages.findIndex((stage) => stage.id === id), lane, source, key: 0, dark: false, rows: () => null, bars: [] });
  for (const id of ["tokens", "self_attn.scores", "cross_attn.values", "ff"]) {
    const { columns, width } = layout(id);
    for (let i = 1; i < columns.length; i++) assert.ok(columns[i].x >= columns[i - 1].x + columns[i - 1].width);
    assert.ok(columns.at(-1).x + columns.at(-1).width <= width);
    const own = stages.find((stage) => stage.id === id);
    assert.equal(columns.filter(({ stage }) => stages[stage] === own).length, own.columns.length, id);
  }
  assert.ok(layout("cross_attn.scores").top >= 60, "room for the keys above a matrix");
  assert.deepEqual(new Set(layout("ff", true).columns.map(({ stage }) => stages[stage].id)), new Set(["tokens", "cross_attn.values", "ff"]), "with the vector x to which it is added");
  assert.ok(layout("ff").columns.length < stages.flatMap(({ columns }) => columns).length);
});

/** Return the lines of the picture of a stage, by their titles. */
function drawn(flow, stack, id, { block = 0, ...change } = {}) {
  const stages = stagesOf(flow, { stack, block });
  const side = stack === "encoder" ? "source" : "target";
  const lanes = { lane: laneOf(side, ["a", "b", "c", "d"], 1), source: laneOf("source", ["e", "f", "g"], 0) };
  const drawing = { ...lanes, stages, current: stages.findIndex((stage) => stage.id === id), alone: false, room: 3000, tall: 26, key: 0, dark: false, rows: () => null, bars: [{ label: "x", value: 1 }], predicts: "", read: 1, ...change };
  const layout = columnLayout(drawing);
  Object.assign(globalThis, { document: {}, getComputedStyle: () => ({ getPropertyValue: () => "" }) }); // no style sheet
  const { shapes } = flowScene(drawing, layout);
  return { layout, shapes, lines: shapes.filter(({ type, title }) => type === "path" && title), titles: shapes.filter(({ type, title }) => type === "path" && title).map(({ title }) => title) };
}

const isResidual = ({ title }) => title.startsWith("residual");
/** Return all heights of a path of horizontal and vertical lines. */
const heights = ({ d }) => [...d.matchAll(/V([\d.]+)/g)].map(([, y]) => Number(y));

test("q, k and v are branches of the norm; q and k join at the weights, weights and v at the context", () => {
  const { titles } = drawn(DECODER, "decoder", "self_attn.heads");
  const between = titles.slice(titles.indexOf("norm → q"), titles.indexOf("weight · v → context") + 1);
  assert.deepEqual(between, ["norm → q", "norm → k", "norm → v", "q → weights", "k → weights", "weights → weight · v", "v → weight · v", "weight · v → context"]);
  const folded = drawn(DECODER, "decoder", "ff", { room: 100 }).titles;
  assert.ok(folded.includes("x → weights") && folded.includes("x → weight · v"), "a folded column passes its inputs on");
});

test("gates are branches that join at the state, directions are parallel, and a state leads to the next step", () => {
  const gates = (path) => ["reset", "keep", "new", "state"].map((name) => [`${path}.${name}`, [4, 8]]);
  const flow = { config: { cell: "gru" }, formulas: {}, tensors: [["encoder.embeddings", [4, 8]], ...gates("encoder.cells.0.forward"), ...gates("encoder.cells.0.backward"), ["encoder.memory", [4, 16]], ["decoder.embeddings", [4, 8]]] };
  const { titles } = drawn(flow, "encoder", "cell0");
  const cell = ["x → z", "x → r", "x → n", "r → n", "z → h", "n → h"];
  const steps = (by) => [0, 1, 2, 3].filter((i) => i + by >= 0 && i + by < 4).map((i) => `h of row ${i + by} → row ${i}`);
  assert.deepEqual(titles, ["token → x", ...cell, ...steps(-1), ...cell, ...steps(1), "h → memory", "h → memory"]);
});

test("an LSTM has no false joins; attention before the step gives its context to the gates", () => {
  const gates = ["write", "keep", "new", "read", "cell"].map((name) => [`decoder.cells.0.${name}`, [4, 8]]);
  const attention = ["scores", "weights", "context"].map((name) => [`decoder.cross_attn.${name}`, [1, 4, 3]]);
  const flow = { config: { cell: "lstm" }, formulas: {}, tensors: [["encoder.embeddings", [3, 8]], ["decoder.embeddings", [4, 8]], ...attention, ...gates, ["decoder.hidden", [4, 8]]] };
  const { titles } = drawn(flow, "decoder", "cell0");
  const own = titles.filter((title) => !title.includes("row"));
  assert.deepEqual(own.slice(own.indexOf("x → o")), [
    "x → o", "context → o", "x, context → i", "x, context → f", "x, context → g", "i → c", "f → c", "g → c", "o → s", "c → s", "s → h",
  ]);
});

test("a sum and its residual line are always drawn, between the rows and above the widths", () => {
  for (const [id, change] of [["self_attn.heads", { room: 100 }], ["ff", { room: 100, tall: 15 }], ["tokens", {}]]) {
    const { lines, layout } = drawn(DECODER, "decoder", id, change);
    assert.equal(layout.columns.filter(({ column }) => column.kind === "add").length, 2);
    const [tall, strip] = [change.tall ?? 26, change.tall ? 9 : 18];
    for (const one of lines.filter(isResidual)) assert.ok(heights(one)[0] > layout.top + tall + 2 + strip && heights(one)[0] < layout.top + 2 * tall + 2, "row 1 is chosen");
    assert.equal(lines.filter(isResidual).length, 2, id);
  }
  for (const id of ["self_attn.values", "ff"]) assert.equal(drawn(DECODER, "decoder", id, { alone: true }).lines.filter(isResidual).length, 1, `${id} alone`);
  const { shapes } = drawn(DECODER, "decoder", "self_attn.scores", { room: 100, block: 2 });
  assert.ok(shapes.some(({ text }) => text === "FF") && !shapes.some(({ text }) => /^F.*…$/.test(text ?? "")), "a title that fits");
});

test("the rows that a label reads are joined to the prediction", () => {
  const rows = (read) => drawn(DECODER, "decoder", "output", { read }).titles.filter((title) => title.endsWith("prediction"));
  assert.deepEqual(rows(0), ["row 0 → prediction"]);
  assert.deepEqual(rows(-1), [0, 1, 2, 3].map((i) => `row ${i} → prediction`), "a mean reads all rows");
  assert.deepEqual(rows(90), [], "outside of the part that is shown");
});

test("formulas have the numbers of the token and the key", () => {
  assert.deepEqual(largest([1, -3, 2], 2).map(({ i }) => i), [1, 2]);
  assert.deepEqual(dotProduct([1, 2], [3, -4]), { sum: -5, text: "2.00·−4.00 + 1.00·3.00" });
  assert.deepEqual(moments([1, 3]), { mean: 2, deviation: 1 });
  const here = "decoder.blocks.0.self_attn";
  const [query, key] = [[1, 0, 0, 0, 2, 0, 0, 0], [3, 0, 0, 0, 1, 0, 0, 0]];
  const tensors = { [`${here}.query`]: [query, 4], [`${here}.key`]: [key, 4], [`${here}.scores`]: [[1.5, 0.5, 3, 1], 2], [`${here}.weights`]: [[1, 0, 0.8808, 0.1192], 2] };
  const stage = stagesOf(DECODER, { stack: "decoder", block: 0 }).find(({ id }) => id === "self_attn.scores");
  const given = (row, chosen, { scale = null, first = 0 } = {}) => numberLines({
    stage, row, key: chosen, row_label: "b", key_labels: ["a", "b"], scale, bars: [],
    rows: (name) => ({ values: Float32Array.from(tensors[name][0]), columns: tensors[name][1], first: name.endsWith("key") ? first : 0 }),
  });
  assert.deepEqual(given(1, 0), [
    "q(1 b) · k(0 a) = 2.00·3.00 + 0.00·0.00 + 0.00·0.00 + 0.00·0.00 = 6.000", "score = 6.000 / √4 = 3.000",
    "weight = exp(3.00) / Σ exp(score) over 2 tokens = 1 / Σ exp(score − 3.00) = 1 / 1.135 = 0.881",
  ]);
  assert.equal(given(0, 1).at(-1), "weight = 0: the mask hides this token");
  assert.equal(given(1, 0, { scale: 0.25 })[1], "score = 6.000 · 0.250 + 1.500 = 3.000", "the rest is the bias of the position");
  assert.equal(given(1, 0, { first: 1 })[0], "0 a is outside of the part that is shown: score = 3.000");
});
