/**
 * Answers to the questions of a first visit about the output of a model: how sure it is, which part writes the output, which
 * word of the input it needs, and which token it did not expect.
 *
 * @import { App } from "./app.js"
 * @import { Answer } from "./questions.js"
 * @import { Example, Place, Run, State, Token } from "./types.js"
 * @import { Attribution } from "../panels/attribution.js"
 *
 * @typedef {{name: string, p: number, index: number}} Prediction
 * A predicted token or label, its probability, and its position; −1 for a label.
 *
 * @typedef {{prediction: Prediction, word: Word, after: number | null}} LeftOut
 * @typedef {{text: string, number: number, rest: string}} Word a word, its index among the words, and the input without
 * it
 */

import { byProbability, capital, changeOf, fixed, partWords, percent, quoted, tokenName } from "./text.js";
import { mainSide, mainTokens, positionSide, positionTokens } from "./state.js";

/** Largest number of words that are left out, one run each; the server keeps eight runs. */
const MAX_WORDS = 6;
/** The mask in a text. It does not depend on the mask token of the model. */
const MASK = "[MASK]";

/** Return the positions that a question is about: the masks of a model that fills masks, or all positions. @param {State} state */
export function askedPositions(state) {
  const tokens = mainTokens(state);
  const masks = state.model?.verb === "fill" ? tokens.flatMap(({ text }, i) => (text === state.model?.mask ? [i] : [])) : [];
  return masks.length ? masks : tokens.map((_, i) => i);
}

/** Return the position at which the two best candidates differ most in probability. A position that predicts the end of the text is the last choice. @param {State} state */
function mostCertain(state) {
  const tokens = mainTokens(state);
  const isEnd = (/** @type {number} */ t) => state.model?.end_ids.includes(tokens[t]?.top[0]?.[0] ?? -1);
  const gap = (/** @type {number} */ t) => (isEnd(t) ? -1 : 0) + (tokens[t]?.top[0]?.[2] ?? 0) - (tokens[t]?.top[1]?.[2] ?? 0);
  return askedPositions(state).reduce((best, t) => (gap(t) > gap(best) ? t : best));
}

/** Return the stage of the flow at which the scores are computed. @param {State} state */
function outputPlace({ model }) {
  return `${model?.kind === "encoder" ? "encoder" : "decoder"}.0.0.output`;
}

/** @param {App} app @returns {Promise<Answer>} */
export async function askPrediction({ store: { state } }) {
  const tokens = mainTokens(state);
  const [t, nBlocks] = [tokens.length - 1, state.model?.attention.decoder?.layers ?? 0];
  const [, text = "", p = 0] = tokens[t]?.top[0] ?? [];
  return {
    view: { panel: "flow", flow: "decoder.0.0.tokens", pos: t },
    lit: { hover: { side: mainSide(state), index: t }, across: null },
    seen: `After the last token, ${tokenName(tokens, t)}, the most probable next token is ${quoted(text)}, with ${percent(p)}.`,
    means: `Read the picture from left to right: each token becomes a vector, ${nBlocks === 1 ? "1 block changes" : `${nBlocks} blocks change`} the vectors, and the vector of the last token gives the prediction. “next →” in the view shows the steps one by one.`,
  };
}

/** @param {App} app @param {Run} run @returns {Promise<Answer>} */
export async function askScores({ store: { state } }, run) {
  const t = mostCertain(state);
  const candidates = run.labels ?? mainTokens(state)[t]?.top.map(([, name, probability]) => ({ name, probability })) ?? [];
  const [first, second] = byProbability(candidates);
  if (!first || !second) throw new Error("the model has one answer only");
  const where = run.labels ? "" : `${capital(tokenName(positionTokens(state), t))}: `;
  const logit = Math.log(first.probability / second.probability);
  return {
    view: { panel: "flow", flow: outputPlace(state), ...(run.labels ? {} : { pos: t }) },
    lit: run.labels ? null : { hover: { side: positionSide(state), index: t }, across: null },
    seen: `${where}${quoted(first.name)} has a probability of ${percent(first.probability)}. The second candidate, ${quoted(second.name)}, has ${percent(second.probability)}. The score (logit) of the first is ${fixed(logit, 2)} higher.`,
    means: "The model gives each candidate a score, and softmax turns the scores into probabilities. If one score is higher by 1, its probability is 2.7 times as large.",
  };
}

/** @param {App} app @param {Run} run @returns {Promise<Answer>} */
export async function askParts({ data, store: { state } }, run) {
  const query = { position: mostCertain(state) };
  const { token, position, logit, terms } = /** @type {Attribution} */ (await data.json(run, "attribution", query));
  const [[name, term] = ["", null]] = Object.entries(terms).sort(([, a], [, b]) => b.value - b.mean - a.value + a.mean);
  if (!term) throw new Error("the logit has no terms");
  const relation = mainSide(state) === "target" ? "After" : "At";
  return {
    view: { panel: "attribution", pos: position, answer: "", wrong: "" },
    lit: { hover: { side: mainSide(state), index: position }, across: null },
    seen: `${relation} ${tokenName(mainTokens(state), position)}, the score (logit) of ${quoted(token)} is ${fixed(logit, 2)}. ${capital(partWords(name))} adds ${fixed(term.value, 2)} to it, and ${fixed(term.mean, 2)} to a token on average.`,
    means: "Each head and each feed-forward adds a vector, and the output reads the sum. So the score of a token is also a sum, with one term per part. A term is the direct effect of a part only, without what the part gives to later parts, so it can differ from switching the part off.",
  };
}

/**
 * Return the words of a text except its masks, each with the text without that word. If the text is one word, return
 * its letters.
 * @param {string} text
 */
export function wordsOf(text) {
  const words = [...text.matchAll(/\S+/gu)];
  const found = words.length > 1 ? words : [...text.matchAll(/\S/gu)];
  return found.filter(([word]) => !word.includes(MASK)).map((match, number) => {
    const [before, after] = [text.slice(0, match.index), text.slice(match.index + match[0].length)];
    return { text: match[0], number, rest: before === "" || /\s$/u.test(before) ? before + after.replace(/^\s/u, "") : before + after };
  });
}

/**
 * Return the index of the first token of each word; null if the number of words differs because of unknown tokens.
 * @param {Token[]} tokens
 * @param {number} nWords
 */
export function beginsOfWords(tokens, nWords) {
  const decoder = new TextDecoder();
  /** @type {number[]} */
  const begins = [];
  let text = "";
  tokens.forEach(({ bytes, is_special }, i) => {
    text += is_special ? " " : decoder.decode(Uint8Array.from(bytes), { stream: true });
    const n = text.trim().split(/\s+/u).length;
    while (text.trim() !== "" && begins.length < n) begins.push(i);
  });
  return begins.length === nWords ? begins : null;
}

/** Return the predictions of a run: the tokens that it scores, its labels, or its candidates for the mask. @param {Run} run @param {string | null} mask @returns {Prediction[]} */
function predictionsOf(run, mask) {
  if (run.written.length) return run.written.map(({ log_prob: logProb }, index) => ({ name: tokenName(run.written, index), p: Math.exp(logProb ?? -Infinity), index }));
  if (run.labels) return run.labels.map(({ name, probability }) => ({ name: quoted(name), p: probability, index: -1 }));
  const index = run.source.findIndex(({ text }) => text === mask);
  return (run.source[index]?.top ?? []).map(([, text, p]) => ({ name: quoted(text), p, index }));
}

/** Return the text with a mask in place of its middle word, for a model that fills masks and a text without one. @param {State} state @returns {Example | null} */
export function withMask({ model, text }) {
  if (model?.verb !== "fill" || text.includes(MASK)) return null;
  const words = text.split(/\s+/u);
  return { text: words.map((word, i) => (i === Math.floor(words.length / 2) ? MASK : word)).join(" ") };
}

/** @param {App} app @param {Run} run @returns {Promise<Answer>} */
export async function askLeftOut(app, run) {
  const { store: { state }, data } = app;
  const { model, ran } = state;
  const isPair = run.written.length > 0;
  const text = isPair ? ran?.source : ran?.text;
  if (!model || !text || ran?.messages) throw new Error("the run has no text: run a text first");
  const words = wordsOf(text);
  if (words.length < (model.verb === "fill" ? 1 : 2)) throw new Error("the text has one word: run a text of several words");
  const target = isPair ? ran?.target || new TextDecoder().decode(Uint8Array.from(run.written.flatMap(({ bytes }) => bytes))) : null;
  const before = isPair ? predictionsOf(run, null) : predictionsOf(run, model.mask).sort((a, b) => b.p - a.p).slice(0, 1);
  /** @type {LeftOut[]} */
  const trials = [];
  for (const word of words.slice(0, MAX_WORDS)) {
    const body = { model: model.id, ...(isPair ? { source: word.rest, target } : { text: word.rest }) };
    const changed = /** @type {Run} */ (await data.post("/api/run", body));
    const after = predictionsOf(changed, model.mask);
    trials.push(...before.map((prediction) => ({ prediction, word, after: after.find(({ name }) => name === prediction.name)?.p ?? null })));
  }
  const fall = (/** @type {LeftOut} */ { prediction, after }) => prediction.p - (after ?? 0);
  const most = trials.reduce((best, one) => (fall(one) > fall(best) ? one : best));
  const ofSame = trials.filter(({ prediction }) => prediction === most.prediction);
  const least = ofSame.reduce((best, one) => (fall(one) < fall(best) ? one : best));
  const change = (/** @type {LeftOut} */ { prediction, after }) =>
    after === null ? `falls from ${percent(prediction.p)} to less than that of the ten best candidates` : changeOf(prediction.p, after);
  const isFall = change(most).startsWith("falls");
  const begin = beginsOfWords(run.source, words.length)?.[most.word.number];
  const word = begin === undefined ? null : /** @type {Place} */ ({ side: "source", index: begin });
  return {
    view: isPair && "cross" in run.attention ? { panel: "alignment", align_layer: -1, align_head: -1, pos: most.prediction.index } : { panel: "flow", flow: outputPlace(state), ...(most.prediction.index < 0 ? {} : { pos: most.prediction.index }) },
    lit: isPair ? { hover: { side: "written", index: most.prediction.index }, across: word } : word && { hover: word, across: null },
    seen: `Without ${quoted(most.word.text)}, the probability of ${most.prediction.name} ${change(most)}.`,
    means: `Each of ${Math.min(words.length, MAX_WORDS)} words was left out once, and the model read the rest. ${isFall ? `This word matters most for ${most.prediction.name}.` : "No probability falls."} Without ${quoted(least.word.text)}, the probability ${change(least)}.`,
  };
}

/** @param {App} app @param {Run} run @returns {Promise<Answer>} */
export async function askSurprise({ store: { state } }, run) {
  const tokens = positionTokens(state);
  const scored = tokens.flatMap((token, index) => (typeof token.log_prob === "number" ? [{ index, logProb: token.log_prob, rank: token.rank }] : []));
  if (!scored.length) throw new Error("no token of the text is predicted: run a text of several tokens");
  const least = scored.reduce((best, one) => (one.logProb < best.logProb ? one : best));
  const isAfter = positionSide(state) === "target"; // the token is predicted at the position before it
  const position = isAfter ? Math.max(0, least.index - 1) : least.index;
  const [, expected = "", p = 0] = mainTokens(state)[position]?.top[0] ?? [];
  return {
    view: { panel: "flow", flow: outputPlace(state), pos: position },
    lit: { hover: { side: positionSide(state), index: least.index }, across: null },
    seen: `${capital(tokenName(tokens, least.index))} has a probability of ${percent(Math.exp(least.logProb))}${least.rank === 1 ? ", and is still the most probable token." : ` and rank ${least.rank}. The model expected ${quoted(expected)}, with ${percent(p)}.`}`,
    means: `The loss of a text is the mean of −log p over its tokens${run.loss === null ? "" : `, here ${fixed(run.loss, 2)} nats`}. A token that the model does not expect makes it large.`,
  };
}
