/**
 * Questions of the first visit. An answer has a view and two texts: `seen` states what the view shows, with the numbers
 * of this run, and `means` explains it. The abilities of a model determine its questions.
 *
 * @import { App } from "./app.js"
 * @import { Source } from "./source.js"
 * @import { Example, Lit, Model, Run, State, Token, View } from "./types.js"
 * @import { Scores } from "../panels/attention.js"
 * @import { Ablation, Effects } from "../panels/ablation.js"
 * @import { Alignment } from "../panels/alignment.js"
 * @import { Lens } from "../panels/lens.js"
 *
 * @typedef {{view: Partial<View>, lit: Lit, seen: string, means: string}} Answer
 * @typedef {{rows: number, columns: number, values: ArrayLike<number>}} Matrix
 * @typedef {{kind: string, layer: number, head: number}} Head
 * @typedef {{title: string, routes: string[], exists: (model: Model) => boolean, ask: (app: App, run: Run) => Promise<Answer>, input?: (state: State) => Example | null, note?: string}} Question
 * `input` returns an input that makes the answer clear, and `note` describes it; null keeps the current input.
 */

import { partOf } from "../panels/ablation.js";
import { isQuickToSwitch } from "./app.js";
import { floats } from "./source.js";
import { askLeftOut, askParts, askPrediction, askScores, askSurprise, askedPositions, withMask } from "./output_questions.js";
import { LEAST_EFFECT, capital, changeOf, fixed, partWords, percent, quoted, tokenName } from "./text.js";
import { mainSide, mainTokens, positionSide, positionTokens } from "./state.js";

/** @type {Question[]} */
export const QUESTIONS = [
  { title: "How does the text become a prediction?", routes: ["/flow"], exists: (model) => model.kind === "decoder" && model.has_head_over_tokens, ask: askPrediction },
  { title: "From which source token is this target token?", routes: ["/alignment"], exists: (model) => "cross" in model.attention, ask: askAlignment },
  { title: "Which token does this one look at?", routes: ["/scores", "/attention"], exists: (model) => selfKind(model.attention) !== null, ask: askReading, input: repeated, note: "The box has the text twice in a row now, so that tokens repeat." },
  { title: "What does a gate keep?", routes: ["/flow", "/tensor"], exists: hasGates, ask: askGate },
  { title: "What does the mask hide?", routes: ["/scores", "/attention"], exists: (model) => "decoder" in model.attention, ask: askMask },
  { title: "What if a head is switched off?", routes: ["/effects"], exists: (model) => model.kind !== "recurrent", ask: askAblation },
  { title: "Why this token?", routes: ["/lens"], exists: (model) => model.has_head_over_tokens && model.kind !== "recurrent", ask: askLayers },
  { title: "Which part writes this token?", routes: ["/attribution"], exists: (model) => model.kind === "decoder" && model.is_additive, ask: askParts },
  { title: "What if a word is left out?", routes: ["/api/run"], exists: (model) => model.kind === "recurrent" || (model.kind === "encoder" && (model.verb === "fill" || (model.verb === "classify" && model.labels.length > 1))), ask: askLeftOut, input: withMask, note: "The box has a mask in place of the middle word now." },
  { title: "How sure is the model?", routes: ["/flow"], exists: (model) => model.has_head_over_tokens || (model.labels.length > 1 && !model.is_multi_label), ask: askScores },
  { title: "Which token did the model not expect?", routes: ["/flow"], exists: (model) => model.has_head_over_tokens, ask: askSurprise },
];

/** Largest number of questions of a model. */
const MAX_QUESTIONS = 8;

/**
 * Return the first questions of a model that a source can answer.
 * @param {Model} model
 * @param {Source} source
 */
export function questionsOf(model, source) {
  const isAnswered = (/** @type {Question} */ { routes }) => routes.every((route) => source.answers(route));
  return QUESTIONS.filter((question) => question.exists(model) && isAnswered(question)).slice(0, MAX_QUESTIONS);
}

/** Return the kind of self-attention; null without one. @param {Record<string, unknown>} attention */
function selfKind(attention) {
  return ["decoder", "encoder"].find((kind) => kind in attention) ?? null;
}

/** Return true if the cells of a recurrent model have gates. @param {Model} model */
function hasGates({ architecture }) {
  return architecture.some(({ rows }) => rows.some(([name, value]) => name === "cell" && value !== "rnn"));
}

/** Patterns of heads, the clearest one first. `key` returns the key that the head attends to from a token (−1 without one). `means` explains the pattern. */
export const PATTERNS = [
  {
    name: "induction", key: (/** @type {number[]} */ ids, /** @type {number} */ t) => (earlier(ids, t) < 0 ? -1 : earlier(ids, t) + 1),
    means: "The head finds the same token earlier in the text, and reads the token after it. That token is a good guess of what comes next. Such a head is called an induction head.",
  },
  {
    name: "duplicate", key: earlier,
    means: "The head reads the same token at an earlier place. From this, the next layers can know that the token repeats.",
  },
  {
    name: "previous", key: (/** @type {number[]} */ _ids, /** @type {number} */ t) => t - 1,
    means: "The head reads the token before each token. From this, the next layers can know the order of the text.",
  },
  {
    name: "first", key: (/** @type {number[]} */ _ids, /** @type {number} */ t) => (t ? 0 : -1),
    means: "The head reads the first token, which adds little. Many heads do this if no other token is useful to them.",
  },
];
const NO_PATTERN = "No head shows a known pattern both on this text and on random tokens.";

const NO_HEAD_MATTERS = "The model needs none of its heads alone for this text. ";
/** Explanations of the measures of an effect. */
const MEASURES = /** @type {Record<string, string>} */ ({
  loss: " The loss is the mean of −log of the probability of the right token, in nats; lower is better.",
  kl: " The change of the predictions is measured in nats, and is 0 if they stay the same.",
});
/** A layer is named if it adds at least this share of the final probability. */
const DECIDES = 0.5;

/** Return the last earlier position with the same token; −1 without one. @param {number[]} ids @param {number} t */
function earlier(ids, t) {
  return t ? ids.lastIndexOf(ids[t] ?? -1, t - 1) : -1;
}

/**
 * Return the row with the largest weight on its key, and that key. Of equal weights, take the last.
 * @param {Matrix} weights
 * @param {(row: number) => number} keyOf the key of a row; −1 leaves the row out
 */
export function clearest({ rows, columns, values }, keyOf) {
  let best = { row: 0, column: 0, weight: -1 };
  for (let row = 0; row < rows; row++) {
    const column = keyOf(row);
    const weight = values[row * columns + column] ?? -1;
    if (column >= 0 && weight >= best.weight) best = { row, column, weight };
  }
  return best;
}

/** Return the column of the largest weight of a row, other than `but`. @param {Matrix} weights @param {number} row @param {number} [but] */
function largestKey({ columns, values }, row, but = -1) {
  const weights = Array.from({ length: columns }, (_, j) => (j === but ? -1 : values[row * columns + j] ?? 0));
  return weights.indexOf(Math.max(...weights));
}

/**
 * Return the text twice in a row, so that tokens occur again. Return null if the text repeats a pair of tokens already,
 * or if the model is not a decoder.
 * @param {State} state
 */
export function repeated({ run, model, text }) {
  if (!run || !model || model.kind !== "decoder" || text === "") return null;
  const pairs = run.target.slice(1).map(({ id }, i) => `${run.target[i]?.id} ${id}`);
  if (new Set(pairs).size < pairs.length) return null;
  const share = Math.min(1, (model.max_len - 2) / (2 * run.target.length));
  const part = text.slice(0, Math.floor(share * text.length)).trim();
  return part === "" ? null : { text: `${part} ${part}` };
}

/** Return the head of a kind with the largest value. @param {Scores} scores @param {string} kind @param {(sharpness: number) => number} value @returns {Head} */
function headWith(scores, kind, value) {
  const all = (scores.kinds[kind]?.heads ?? []).flatMap((heads, layer) => heads.map((one, head) => ({ kind, layer, head, value: value(one.sharpness ?? 0) })));
  return all.reduce((best, one) => (one.value > best.value ? one : best), all[0] ?? { kind, layer: 0, head: 0, value: 0 });
}

/** @param {App} app @param {Run} run @returns {Promise<Answer>} */
async function askReading(app, run) {
  const scores = /** @type {Scores} */ (await app.data.json(run, "scores"));
  const found = PATTERNS.flatMap((pattern) => scores.ranked.filter((one) => one.name === pattern.name && one.is_found && one.kind !== "cross").map((head) => ({ pattern, head })))[0];
  const { kind, layer, head } = found?.head ?? headWith(scores, selfKind(run.attention) ?? "", (sharpness) => sharpness);
  const place = /** @type {import("./types.js").AttentionPlace} */ (run.attention[kind]);
  const tokens = run[place.rows];
  const ids = tokens.map(({ id }) => id);
  const weights = await app.data.head(run, kind, layer, head);
  const keyOf = found?.pattern.key ?? ((_, t) => (t ? largestKey(weights, t, t) : -1));
  const isWord = (/** @type {number} */ t) => !tokens[t]?.is_special && /[\p{L}\p{N}]/u.test(tokens[t]?.text ?? "");
  const words = clearest(weights, (t) => (isWord(t) && isWord(keyOf(ids, t)) ? keyOf(ids, t) : -1)); // an example with words says more
  const { row, column, weight } = words.weight < 0 ? clearest(weights, (t) => keyOf(ids, t)) : words;
  const own = found ? 0 : weights.values[row * weights.columns + row] ?? 0;
  return {
    view: { panel: "attention", kind, layer, head, shown: "matrix", ...(place.rows === mainSide(app.store.state) ? { pos: row } : {}) },
    lit: { hover: { side: place.rows, index: row }, across: { side: place.columns, index: column } },
    seen: `Row ${row} of this attention map has a frame and belongs to ${tokenName(tokens, row)}. It puts ${percent(weight)} of its weight on ${tokenName(tokens, column)}${own > weight ? `, and more only on itself (${percent(own)})` : ""}.`,
    means: found?.pattern.means ?? `${NO_PATTERN} Of the heads of the ${kind}, the rows of this one put most weight on one token, on average.`,
  };
}

/** @param {App} app @param {Run} run @returns {Promise<Answer>} */
async function askAlignment(app, run) {
  const { weights } = /** @type {Alignment} */ (await app.data.json(run, "alignment"));
  const matrix = { rows: weights.length, columns: weights[0]?.length ?? 0, values: weights.flat() };
  const isWord = (/** @type {Token | undefined} */ token) => token !== undefined && !token.is_special;
  const { row, column, weight } = clearest(matrix, (t) => {
    const key = largestKey(matrix, t);
    return isWord(run.written[t]) && isWord(run.source[key]) ? key : -1;
  });
  return {
    view: { panel: "alignment", align_layer: -1, align_head: -1, pos: row },
    lit: { hover: { side: "written", index: row }, across: { side: "source", index: column } },
    seen: `${capital(tokenName(run.written, row))} of the target puts ${percent(weight)} of its weight on ${tokenName(run.source, column)} of the source.`,
    means: "The model has learned by itself which source token it needs for each target token. This table is called an alignment.",
  };
}

/** @param {App} app @param {Run} run @returns {Promise<Answer>} */
async function askGate(app, run) {
  const { shape: [rows = 0, width = 0], buffer } = await app.data.bytes(run, "tensor", { name: "decoder.cells.0.keep", first: 0, count: run.target.length });
  const values = floats(buffer);
  const means = Array.from({ length: rows }, (_, t) => values.subarray(t * width, (t + 1) * width).reduce((sum, x) => sum + x, 0) / width);
  const [most, least] = [means.indexOf(Math.max(...means)), means.indexOf(Math.min(...means))];
  return {
    view: { panel: "flow", flow: "decoder.0.0.cell0", pos: least },
    lit: { hover: { side: "target", index: least }, across: null },
    seen: `At ${tokenName(run.target, most)} of the target, the keep gate keeps ${percent(means[most] ?? 0)} of the old state (mean over the cell), and at ${tokenName(run.target, least)} ${percent(means[least] ?? 0)}.`,
    means: "A gate is a number from 0 to 1 for each number of the state. It decides, token by token, what the cell keeps and what it replaces.",
  };
}

/** @param {App} app @param {Run} run @returns {Promise<Answer>} */
async function askMask(app, run) {
  const scores = /** @type {Scores} */ (await app.data.json(run, "scores"));
  const { kind, layer, head } = headWith(scores, "decoder", (sharpness) => -sharpness);
  const { rows, columns, values } = await app.data.head(run, kind, layer, head);
  const row = Math.floor((rows - 1) / 2);
  const sum = (/** @type {number} */ from, /** @type {number} */ to) => values.slice(row * columns + from, row * columns + to).reduce((total, x) => total + x, 0);
  const next = Math.min(row + 1, columns - 1);
  return {
    view: { panel: "attention", kind, layer, head, shown: "matrix", pos: row },
    lit: { hover: { side: "target", index: row }, across: { side: "target", index: next } },
    seen: `In row ${row}, the weights of tokens 0 to ${row} sum to ${percent(sum(0, row + 1))}, and those of the ${columns - row - 1} later tokens to ${percent(sum(row + 1, columns))}. The framed column is the first of the later tokens.`,
    means: "The mask hides all later tokens, because the model has to predict them. So the upper right half of the map is empty.",
  };
}

/**
 * Return the effect of each head; of a large model with a loss, only of the heads with the largest estimate by the gradient.
 * @param {App} app @param {Run} run @returns {Promise<{heads: (Head & {effect: number})[], measure: string | undefined, n_heads: number}>}
 */
async function switchedOff(app, run) {
  if (run.loss !== null && app.source.hasGradients && !isQuickToSwitch(app)) return app.data.json(run, "likely");
  const effects = /** @type {Effects} */ (await app.data.json(run, "effects"));
  const heads = Object.keys(run.attention).flatMap((kind) => /** @type {number[][]} */ (effects[kind]).flatMap((row, layer) => row.map((effect, head) => ({ kind, layer, head, effect }))));
  return { heads, measure: effects.measure, n_heads: heads.length };
}

/** @param {App} app @param {Run} run @returns {Promise<Answer>} */
async function askAblation(app, run) {
  const { heads, measure, n_heads: nHeads } = await switchedOff(app, run);
  const order = heads.sort((a, b) => b.effect - a.effect);
  const [most, least] = [order[0], order.at(-1)];
  if (!most || !least) throw new Error("the model has no heads");
  const name = (/** @type {Head} */ { kind, layer, head }) => partWords(`${kind}.${layer}.head.${head}`);
  const change = (/** @type {number} */ effect) => {
    if (measure === "change") return `the output changes by ${fixed(effect, 2)}`;
    if (measure === "kl") return `the predictions change by ${fixed(effect, 2)} nats`;
    if (Math.abs(effect) < LEAST_EFFECT) return "the loss changes by less than 0.01 nats per token";
    return `the loss ${effect < 0 ? "falls" : "rises"} by ${fixed(Math.abs(effect), 2)} nats per token${effect < 0 ? ": for this text, the model is better without it" : ""}`;
  };
  const part = `${most.kind}.${most.layer}.${most.head}`;
  const [side, drop] = [positionSide(app.store.state), await largestDrop(app, run, partOf(part))];
  const index = drop?.index ?? 0;
  const isAfter = side === "target"; // the token is predicted at the position before it
  const isPart = heads.length < nHeads;
  const matters = isPart ? `The ${heads.length} heads of ${nHeads} with the largest estimate by the gradient were switched off one by one: of these, this one matters most for this text. “Measure all” measures every head. ` : "Of all heads, this one matters most for this text. ";
  return {
    view: { panel: "ablation", kind: most.kind, off: part, mean: 0, ...(drop ? { pos: isAfter ? index - 1 : index } : {}) },
    lit: drop ? { hover: { side, index }, across: null } : null,
    seen: drop ? `Without ${name(most)}, the probability of ${tokenName(positionTokens(app.store.state), index)} ${changeOf(drop.before, drop.after)}.`
      : `Without ${name(most)}, ${change(most.effect)}.`,
    means: `${most.effect < LEAST_EFFECT && !isPart ? NO_HEAD_MATTERS : heads.length === 1 ? "" : matters}Without it, ${change(most.effect)}.` +
      (heads.length === 1 ? "" : ` Without ${name(least)}, ${change(least.effect)}.`) + (MEASURES[measure ?? "loss"] ?? ""),
  };
}

/** Return the token whose probability falls most without a part; null if the run has no probabilities of its tokens. @param {App} app @param {Run} run @param {string} off */
async function largestDrop(app, run, off) {
  const { before, after } = /** @type {Ablation} */ (await app.data.post(`/api/run/${run.run}/ablate`, { off, mean: false }));
  const drops = before.positions.map(({ log_prob: was }, index) => {
    const is = after.positions[index]?.log_prob ?? null;
    return was === null || is === null ? null : { index, before: Math.exp(was), after: Math.exp(is) };
  }).filter((drop) => drop !== null);
  return drops.sort((a, b) => b.before - b.after - a.before + a.after)[0] ?? null;
}

/** @param {App} app @param {Run} run @returns {Promise<Answer>} */
async function askLayers(app, run) {
  const { layers, cells } = /** @type {Lens} */ (await app.data.json(run, "lens", { norm: 1 }));
  const { state } = app.store;
  const last = cells.at(-1) ?? [];
  const actual = [...(run.written.length ? run.written : mainTokens(state).slice(1))].map(({ id }) => id);
  /** Return the probability, after each layer, of the token that the last layer predicts; 0 if it is not among the best tokens of a layer. @param {number} t */
  const probabilities = (t) => cells.map((row) => {
    const predicted = last[t]?.top[0]?.[0];
    const known = row[t]?.top.find(([id]) => id === predicted)?.[2];
    return known ?? (run.target.length && predicted === actual[t] ? row[t]?.next : 0) ?? 0;
  });
  const shown = (/** @type {number | undefined} */ p) => (p ? percent(p) : "below that of the five best tokens");
  /** Return the largest increase of this probability from one layer to the next, and the largest fall after it. @param {number} t */
  const stepOf = (t) => {
    const p = probabilities(t);
    const steps = p.slice(1).map((x, i) => x - (p[i] ?? 0));
    const size = Math.max(...steps);
    const layer = steps.indexOf(size) + 1;
    const [before, after] = [p[layer - 1] ?? 0, p[layer] ?? 0];
    const bounds = p.map((x, i) => x || (cells[i]?.[t]?.top.at(-1)?.[2] ?? 0)); // an unknown probability is at most that of the last of the best tokens
    const stays = bounds.slice(layer).every((x) => x >= DECIDES * (p.at(-1) ?? 0));
    const falls = p.map((_, i) => (i > layer ? (p[i - 1] ?? 0) - (bounds[i] ?? 0) : 0));
    const [fall, lower] = [Math.max(...falls), falls.indexOf(Math.max(...falls))];
    const lowered = fall < 0.001 ? "" : ` So a later layer can lower the probability again: ${layers[lower]} lowers it from ${percent(p[lower - 1] ?? 0)} to ${shown(p[lower])}.`;
    return { t, size, layer, before, after, stays, lowered, sure: after - (bounds[layer - 1] ?? 0) };
  };
  const step = askedPositions(state).map(stepOf).reduce((best, one) => (one.size > best.size ? one : best));
  const [, text = "", p = 0] = last[step.t]?.top[0] ?? [];
  const relation = run.written.length ? "For" : run.target.length ? "After" : "At";
  return {
    view: { panel: "lens", norm: 1, lens: "top", pos: step.t },
    lit: { hover: { side: positionSide(state), index: step.t }, across: null },
    seen: `${relation} ${tokenName(positionTokens(state), step.t)}, the model predicts ${quoted(text)} with ${percent(p)}. Before ${layers[step.layer]}, ` +
      `its probability is ${shown(step.before)}, and after it ${percent(step.after)}.`,
    means: `${decision(step.sure, p, layers[step.layer] ?? "", step.stays)} Each layer adds to the vector of the token, and the logit lens reads a prediction from this vector after each layer.${step.lowered}`,
  };
}

/**
 * Return whether a layer adds at least half of the final probability.
 * @param {number} step its largest increase from one layer to the next
 * @param {number} p its final probability
 * @param {string} layer the layer of this increase
 * @param {boolean} stays true if no later layer lowers the probability below half of the final one
 */
export function decision(step, p, layer, stays) {
  if (!stays) return `${capital(layer)} raises it most, and a later layer lowers it below half of its final value again.`;
  if (step >= DECIDES * p) return `${capital(layer)} adds at least half of the final probability.`;
  return `No layer adds half of the final probability${step > 0 ? `: ${layer} has the largest part` : ""}.`;
}
