/**
 * One run of a network on a text or a pair: its named tensors, and the data of the panels.
 *
 * @import { Model, Token } from "../page/types.js"
 * @import { LayerScores } from "./head_scores.js"
 * @import { Input, Reading } from "./reading.js"
 * @import { RecurrentModel } from "./recurrent.js"
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Tokenizer } from "./tokenizer.js"
 * @import { Transformer } from "./transformer.js"
 *
 * @typedef {"tokens" | "labels" | "tags" | "number" | "none"} Outputs what the head predicts
 *
 * @typedef {{
 *   model: Model, outputs: Outputs, names: Record<string, string>, margin: number, windows: Record<string, number[]>,
 *   random_scores: Record<string, LayerScores> | null, n_random: [number, number] | null,
 *   measure: "loss" | "tokens" | "labels" | "each label" | "change",
 * }} Facts
 * Facts of a model that do not depend on the run: the model card, the names of the head scores, the attention windows
 * of each stack, the head scores on random tokens, the number of their sequences and tokens (null for a recurrent model), and the measure of an ablation.
 */

import { pause } from "../page/source.js";
import { headOf, headScores, rankedHeads, uniformAttention } from "./head_scores.js";
import { entropyOf, logSoftmax, logitsAt, nAbove, topOf } from "./heads.js";
import { sigmoid } from "./layers.js";
import { meanOf } from "./spread.js";
import { allowedPairs } from "./attention_functions.js";
import { range, rowsAt } from "./tensors.js";
import { TextError } from "./tokenizer.js";

const AXES = /** @type {const} */ ({ encoder: ["source", "source"], decoder: ["target", "target"], cross: ["written", "source"] });
const N_TOP = 10;
const N_LENS = 5;

/** A run: its input, its named tensors, and its predictions. */
export class ComputedRun {
  /**
   * @param {string} name
   * @param {Facts} facts
   * @param {Reading} reading
   * @param {Transformer | RecurrentModel} network
   * @param {Input} input
   * @param {string[]} vocabulary names of all rows of the head, by id
   */
  constructor(name, facts, reading, network, input, vocabulary) {
    this.names = { model: facts.model.id, run: name };
    this.facts = facts;
    this.reading = reading;
    this.network = network;
    this.input = input;
    this.vocabulary = vocabulary;
    /** @type {Map<string, Tensor>} */
    this.tensors = new Map();
  }

  /** Run the network, and keep every named tensor. @param {Tap} [change] receives each tensor first, and may change its values */
  async compute(change = null) {
    await pause(0); // let the page handle events between two runs
    const tap = (/** @type {string} */ name, /** @type {Tensor} */ x) => {
      change?.(name, x);
      this.tensors.set(name, x);
    };
    const state = /** @type {any} */ (await this.network.start(this.input.sourceIds, tap));
    await this.network.step(this.input.ids, state, tap);
  }

  /** Return a new run of the same input. `compute` fills it. */
  copy() {
    return new ComputedRun(this.names.run, this.facts, this.reading, this.network, this.input, this.vocabulary);
  }

  /** @param {string} name @returns {Tensor} */
  tensor(name) {
    const tensor = this.tensors.get(name);
    if (!tensor) throw new Error(`the run has no tensor ${name}`);
    return tensor;
  }

  /** Number of values in all tensors. */
  get size() {
    return [...this.tensors.values()].reduce((sum, { data }) => sum + data.length, 0);
  }

  /** Return the logits of a position. A head for the whole text has position 0 only. @param {number} position */
  logits(position) {
    return logitsAt(this.tensor("logits"), position);
  }

  /** Return the answer of `/api/run`: tokens with predictions, and the shapes of the attention. @param {string} unknown @param {number} seconds */
  answer(unknown, seconds) {
    const { model } = this.facts;
    const attention = Object.fromEntries(Object.entries(model.attention).map(([kind, size]) => {
      const [rows, columns] = AXES[/** @type {keyof typeof AXES} */ (kind)];
      return [kind, { ...size, rows, columns }];
    }));
    const none = { source: [], target: [], written: [], loss: null, n_scored: 0, labels: null, number: null };
    return { ...this.names, kind: model.kind, ...none, ...this.tokens(), attention, unknown, cut: this.input.note, seconds };
  }

  /** Return the tokens of all sides with their predictions. */
  tokens() {
    const { reading: { rules, tokenizer, sourceTokenizer }, input: { ids, sourceIds } } = this;
    if (rules.is_pair) {
      const [target, written] = [this.plainTokens(tokenizer, ids), this.plainTokens(tokenizer, [...ids.slice(1), rules.end_id])];
      this.predict(target);
      const loss = this.score(written, 0);
      target.slice(1).forEach((token, i) => Object.assign(token, { log_prob: written[i].log_prob, rank: written[i].rank }));
      return { source: this.plainTokens(sourceTokenizer, sourceIds), target, written, ...loss };
    }
    const tokens = this.plainTokens(tokenizer, ids);
    if (this.facts.model.is_causal) {
      this.predict(tokens);
      return { target: tokens, ...this.score(tokens.slice(1), 0) };
    }
    return { source: tokens, ...this.encoderPredictions(tokens) };
  }

  /** Add the predictions of an encoder to its tokens, or return the labels or the number of the text. @param {Token[]} tokens */
  encoderPredictions(tokens) {
    const { outputs, model } = this.facts;
    if (outputs === "number") return { number: this.logits(0)[0] };
    if (outputs === "labels") {
      const logits = this.logits(0);
      const logProbs = logSoftmax(logits);
      return { labels: model.labels.map((name, i) => ({ name, probability: model.is_multi_label ? sigmoid(logits[i]) : Math.exp(logProbs[i]) })) };
    }
    if (outputs === "tags") this.predict(tokens, model.labels);
    if (outputs === "tokens") {
      this.predict(tokens);
      tokens.forEach((token, t) => token.id !== this.reading.rules.mask?.id && this.score([token], t));
    }
    return {};
  }

  /** Return tokens without predictions. A special token has no bytes. @param {Tokenizer} tokenizer @param {number[]} ids @returns {Token[]} */
  plainTokens(tokenizer, ids) {
    return ids.map((id) => {
      const is_special = tokenizer.special.has(id);
      const bytes = is_special ? [] : [...tokenizer.pieces[id]];
      return { id, text: tokenizer.shown(id), bytes, is_special, log_prob: null, rank: null, entropy: null, top: [] };
    });
  }

  /** Add the most probable tokens or tags, and the entropy, of each position. @param {Token[]} tokens @param {string[]} names */
  predict(tokens, names = this.vocabulary) {
    tokens.forEach((token, t) => {
      const logProbs = logSoftmax(this.logits(t));
      Object.assign(token, { top: topOf(logProbs, names, N_TOP), entropy: entropyOf(logProbs) });
    });
  }

  /** Add log-probability and rank to each token, given the logits from position `first` on. Return the mean loss. @param {Token[]} tokens @param {number} first */
  score(tokens, first) {
    tokens.forEach((token, i) => {
      const logProbs = logSoftmax(this.logits(first + i));
      Object.assign(token, { log_prob: logProbs[token.id], rank: nAbove(logProbs, token.id) + 1 });
    });
    return { loss: tokens.length ? -meanOf(tokens.map(({ log_prob }) => log_prob ?? NaN)) : null, n_scored: tokens.length };
  }

  /** Return the attention weights of a layer, (1, H, T, S). @param {string} kind @param {number} layer */
  weights(kind, layer) {
    if (this.facts.model.kind === "recurrent") return this.tensor("decoder.cross_attn.weights");
    const [stack, attention] = kind === "cross" ? ["decoder", "cross_attn"] : [kind, "self_attn"];
    return this.tensor(`${stack}.blocks.${layer}.${attention}.weights`);
  }

  /** Return the ids of the rows and columns of an attention; null for cross-attention. @param {string} kind */
  idsOf(kind) {
    if (kind === "cross") return null;
    return kind === "encoder" && this.reading.rules.is_pair ? this.input.sourceIds : this.input.ids;
  }

  /** Return the names of the tokens that a stack reads. @param {string} stack */
  namesOf(stack) {
    const { reading: { rules, tokenizer, sourceTokenizer }, input: { ids, sourceIds } } = this;
    if (stack === "encoder" && rules.is_pair) return sourceIds.map((id) => sourceTokenizer.shown(id));
    return ids.map((id) => tokenizer.shown(id));
  }

  /** Return the names of the tokens that the decoder of a pair predicts. */
  writtenNames() {
    return [...this.input.ids.slice(1), this.reading.rules.end_id].map((id) => this.reading.tokenizer.shown(id));
  }

  /** Return names and shapes of the tensors in the order of the computation, and the settings. @param {object} config */
  flow(config) {
    const tensors = [...this.tensors].map(([name, { shape }]) => [name, shape.slice(1)]).filter(([name, shape]) => name !== "logits" && shape.length > 1);
    return { ...this.names, tensors, config };
  }

  /** Return the rows of `count` tokens from `first` on, of one head or of all. @param {string} name @param {number | null} head @param {{first: number, count: number}} rows */
  part(name, head, { first, count }) {
    const { shape, data } = this.tensor(name);
    const [nTokens, width] = shape.slice(-2);
    const nHeads = data.length / (nTokens * width);
    const heads = head === null ? range(0, nHeads) : [head];
    const last = Math.min(nTokens, first + count);
    const found = rowsAt({ shape: [nHeads * nTokens, width], data }, heads.flatMap((i) => range(i * nTokens + first, i * nTokens + last)));
    return { shape: head === null && shape.length > 3 ? [nHeads, last - first, width] : [last - first, width], data: found.data };
  }

  /** Return the scores of all heads, and those of uniform attention as a baseline. */
  scores() {
    const { model, names, margin, windows, random_scores, n_random } = this.facts;
    const kinds = Object.fromEntries(Object.entries(model.attention).map(([kind, { layers, heads }]) => {
      const ids = this.idsOf(kind);
      const ofLayers = range(0, layers).map((layer) => {
        const weights = this.weights(kind, layer);
        const [, , rows, columns] = weights.shape;
        const rules = { causal: kind === "decoder", window: windows[kind]?.[layer] ?? 0 };
        const allowed = kind === "cross" ? null : allowedPairs(range(0, rows), range(0, columns), rules);
        const uniform = uniformAttention(rows, columns, (t, s) => allowed === null || allowed[t * columns + s] === 1);
        return { heads: range(0, heads).map((head) => headScores(headOf(weights, head), ids)), uniform: headScores(uniform, ids) };
      });
      return [kind, { heads: ofLayers.map((one) => one.heads), uniform: ofLayers.map((one) => one.uniform) }];
    }));
    const ranked = random_scores ? rankedHeads(kinds, random_scores, margin) : [];
    return { ...this.names, names, margin, ranked, kinds, random: random_scores, n_random };
  }

  /** Return the weights from the written tokens to the source: those of a head, or the mean over the heads of a layer. @param {number | null} layer @param {number | null} head */
  alignment(layer, head) {
    const { layers, heads } = this.facts.model.attention.cross ?? { layers: 1, heads: 1 };
    const weights = this.weights("cross", layer ?? layers - (layers >= 4 ? 2 : 1));
    const [, , rows, columns] = weights.shape;
    const chosen = head === null ? range(0, heads) : [head];
    const matrix = range(0, rows).map((t) => range(0, columns).map((s) =>
      chosen.reduce((sum, i) => sum + headOf(weights, i).at(t, s), 0) / chosen.length));
    const links = matrix.map((row, t) => [t, row.indexOf(Math.max(...row)), Math.max(...row)]);
    return { ...this.names, rows: "written", columns: "source", weights: matrix, links };
  }

  /** Return the prediction of each layer at each position: the output head, applied to the residual stream of the layer. @param {boolean} norm */
  lens(norm) {
    const network = /** @type {Transformer} */ (this.network);
    const places = network.headStack.residuals();
    const labels = this.labels();
    const cells = places.map(([, path]) => {
      const { shape: [, nTokens, width], data } = this.tensor(path);
      const logits = network.lens({ shape: [nTokens, width], data }, norm);
      return range(0, nTokens).map((t) => {
        const [logProbs, label] = [logSoftmax(logitsAt(logits, t)), labels[t]];
        const ofLabel = label === null ? { next: null, rank: null } : { next: Math.exp(logProbs[label]), rank: nAbove(logProbs, label) + 1 };
        return { top: topOf(logProbs, this.vocabulary, N_LENS), ...ofLabel };
      });
    });
    return { ...this.names, layers: places.map(([name]) => name), cells };
  }

  /** Return the position of the prediction: the last one, or the first mask of a masked model. */
  answerPosition() {
    const { facts: { measure }, input: { ids }, reading: { rules: { mask } } } = this;
    if (measure === "loss") return ids.length - 1;
    const position = ids.findIndex((id) => id === mask?.id);
    if (position < 0) throw new TextError("the text has no [MASK]: add one");
    return position;
  }

  /** Return the id of the actual token that each position predicts; null if it is unknown. @returns {(number | null)[]} */
  labels() {
    const { rules } = this.reading;
    const { ids } = this.input;
    if (rules.is_pair) return [...ids.slice(1), rules.end_id];
    if (this.facts.model.is_causal) return [...ids.slice(1), null];
    return ids.map((id) => (id === rules.mask?.id ? null : id));
  }
}
