/**
 * Direct logit attribution: the logit of a token as a sum of terms, one for each part that writes to the residual
 * stream. Same rules as `inspection/attribution.py`.
 *
 * @import { MultiHeadAttention } from "./attention.js"
 * @import { ComputedRun } from "./computed_run.js"
 * @import { Tensor } from "./tensors.js"
 * @import { Transformer, TransformerConfig } from "./transformer.js"
 * @import { Attribution, Term } from "../panels/attribution.js"
 *
 * @typedef {{name: string, vector: Tensor}} Written the vector that a part adds to the residual stream at the position,
 * (1, D)
 */

import { feedForwardName } from "./ablation.js";
import { hasOutNorms } from "./blocks.js";
import { largest, logitsAt } from "./heads.js";
import { frozenNorm } from "./layers.js";
import { add, linear, range, rowsAt, widthOf, zeros } from "./tensors.js";
import { TextError } from "./tokenizer.js";

/** A term is beyond its baseline if it differs from the mean by more than this many standard deviations. */
const N_DEVIATIONS = 2;

/**
 * Return the terms of the logit of a token at a position, or of the difference of the logits of two tokens.
 * @param {ComputedRun} run
 * @param {TransformerConfig} config
 * @param {{position: number | null, token: string, against: string}} what `token` is by default the prediction
 * @returns {Attribution}
 */
export function attribution(run, config, { position, token, against }) {
  const network = /** @type {Transformer} */ (run.network);
  const at = position ?? run.answerPosition();
  const logits = run.logits(at);
  const chosen = token ? run.reading.answerId(token) : largest(logits, 1)[0];
  const other = against ? run.reading.answerId(against) : null;
  if (chosen === other) throw new TextError(`both tokens are token ${chosen}: give two different tokens`);
  const terms = termsOf(run, network, config, at, chosen, other);
  return {
    ...run.names, token: run.vocabulary[chosen], against: other === null ? null : run.vocabulary[other], position: at,
    logit: logits[chosen] - (other === null ? 0 : logits[other]), terms, ...gridOf(Object.keys(terms)),
  };
}

/**
 * Return the terms in the order of the computation. The scale of the final norm is fixed to its value for the last
 * residual stream, so norm and head together are a linear map plus a constant.
 * @param {ComputedRun} run
 * @param {Transformer} network
 * @param {TransformerConfig} config
 * @param {number} position
 * @param {number} token
 * @param {number | null} against
 */
function termsOf(run, network, config, position, token, against) {
  const { map, shift } = finalNorm(run, network, config, position);
  const zero = zeros(1, config.d_model);
  const parts = writtenBy(run, network, config, position);
  const read = zeros(parts.length + 2, config.d_model);
  [...parts.map(({ vector }) => map(vector)), shift, zero].forEach((vector, i) => read.data.set(vector.data, i * config.d_model));
  const outputs = network.output(read);
  const ofZero = logitsAt(outputs, parts.length + 1);
  /** @type {Record<string, Term>} */
  const terms = {};
  parts.forEach((part, i) => { terms[part.name] = termOf(logitsAt(outputs, i).map((x, id) => x - ofZero[id]), token, against); });
  return { ...terms, output_bias: termOf(logitsAt(outputs, parts.length), token, against) };
}

/** Return the final norm as a linear map plus a shift, with the scale of a position. @param {ComputedRun} run @param {Transformer} network @param {TransformerConfig} config @param {number} position */
function finalNorm(run, { headStack: { name, blocks }, weights }, config, position) {
  const last = blocks.length ? `${name}.blocks.${blocks.length - 1}.residual` : `${name}.embeddings`;
  if (!config.final_norm) return { map: same, shift: zeros(1, config.d_model) };
  return frozenNorm(weights, `${name}.final_norm`, config, rowsAt(run.tensor(last), [position]));
}

/**
 * Return the numbers that one head or neuron, such as "decoder.0.neuron.17", adds to all logits at a position.
 * @param {ComputedRun} run
 * @param {TransformerConfig} config
 * @param {string} unit
 * @param {number} position
 */
export function directEffect(run, config, unit, position) {
  const network = /** @type {Transformer} */ (run.network);
  const [stack = "", layer = "", what, number] = unit.split(".");
  const vector = what === "head" ? writtenBy(run, network, config, position).find(({ name }) => name === unit)?.vector
    : neuronOutput(run, network, config, { path: `${stack}.blocks.${layer}`, neuron: Number(number), position });
  const read = zeros(2, config.d_model);
  read.data.set(finalNorm(run, network, config, position).map(/** @type {Tensor} */ (vector)).data);
  const outputs = network.output(read);
  const ofZero = logitsAt(outputs, 1);
  return logitsAt(outputs, 0).map((x, id) => x - ofZero[id]);
}

/** Return what one neuron of a feed-forward adds to the residual stream: (1, D). @param {ComputedRun} run @param {Transformer} network @param {TransformerConfig} config @param {{path: string, neuron: number, position: number}} where */
function neuronOutput(run, { weights }, config, { path, neuron, position }) {
  const activations = rowsAt(run.tensor(`${path}.ff.activations`), [position]);
  const alone = zeros(1, widthOf(activations));
  alone.data[neuron] = activations.data[neuron];
  const vector = linear(alone, weights.linear(`${path}.ff.down_proj`)[0]);
  return hasOutNorms(config) ? frozenNorm(weights, `${path}.ff_out_norm`, config, rowsAt(run.tensor(`${path}.ff_out_norm.input`), [position])).map(vector) : vector;
}

/**
 * Return the vectors that the parts write at a position; their sum is the last residual stream.
 * @param {ComputedRun} run
 * @param {Transformer} network
 * @param {TransformerConfig} config
 * @param {number} position
 * @returns {Written[]}
 */
function writtenBy(run, network, config, position) {
  const { name: stack, blocks } = network.headStack;
  const at = (/** @type {string} */ tensor) => rowsAt(run.tensor(tensor), [position]);
  const found = [{ name: "embedding", vector: at(`${stack}.embeddings`) }];
  for (const [layer, { selfAttn, crossAttn, ff }] of blocks.entries()) {
    const path = `${stack}.blocks.${layer}`;
    const attentions = /** @type {[string, string, MultiHeadAttention | null][]} */ ([[stack, "self_attn", selfAttn], ["cross", "cross_attn", crossAttn]]);
    for (const [kind, name, attention] of attentions) {
      if (!attention) continue;
      const norm = hasOutNorms(config) ? frozenNorm(network.weights, `${path}.${name}_out_norm`, config, at(`${path}.${name}_out_norm.input`)) : null;
      const through = norm?.map ?? same;
      const valueBias = attention.valueBias();
      const contexts = run.tensor(`${path}.${name}.context`);
      const [, nHeads, nTokens] = contexts.shape;
      for (const head of range(0, nHeads)) {
        const context = rowsAt(contexts, [head * nTokens + position]);
        found.push({ name: `${kind}.${layer}.head.${head}`, vector: through(headOutput(attention, context, valueBias, head)) });
      }
      const bias = through(attention.out ? linear(valueBias, ...attention.out) : valueBias);
      found.push({ name: `${kind}.${layer}.attention_bias`, vector: norm ? add(bias, norm.shift) : bias });
    }
    if (ff) found.push({ name: `${stack}.${layer}.feed_forward`, vector: at(feedForwardName(path, config)) });
  }
  return found;
}

/**
 * Return (context − value bias) W_O of one head, without a bias: (1, D).
 * @param {MultiHeadAttention} attention
 * @param {Tensor} context (1, W)
 * @param {Tensor} valueBias of all heads, (1, H·W)
 * @param {number} head
 */
export function headOutput({ out, sizes }, context, valueBias, head) {
  const width = widthOf(context);
  const contexts = zeros(1, sizes.n_heads * width);
  for (let i = 0; i < width; i++) contexts.data[head * width + i] = context.data[i] - valueBias.data[head * width + i];
  return out ? linear(contexts, out[0]) : contexts;
}

/**
 * Return the term of a part with its mean and standard deviation over the vocabulary. `logits` is the vector that the
 * part adds to the logits.
 * @param {Float32Array} logits
 * @param {number} token
 * @param {number | null} against
 * @returns {Term}
 */
function termOf(logits, token, against) {
  const mean = logits.reduce((sum, x) => sum + x, 0) / logits.length;
  const deviation = Math.sqrt(logits.reduce((sum, x) => sum + (x - mean) ** 2, 0) / logits.length);
  const term = against === null ? { value: logits[token], mean, deviation } : { value: logits[token] - logits[against], mean: 0, deviation: Math.SQRT2 * deviation };
  return { ...term, is_beyond: Math.abs(term.value - term.mean) > N_DEVIATIONS * term.deviation };
}

/** Arrange the terms in a grid with one row per attention: heads, bias, feed-forward; null for a part that a row lacks. @param {string[]} names */
function gridOf(names) {
  const ofLayers = names.filter((name) => name.includes("."));
  const rows = [...new Set(ofLayers.map((name) => name.split(".", 2).join(" ")))];
  const heads = ofLayers.flatMap((name) => (name.includes(".head.") ? [Number(name.split(".")[3])] : []));
  const parts = [...range(0, Math.max(-1, ...heads) + 1).map((head) => `head.${head}`), "attention_bias", "feed_forward"];
  const columns = parts.filter((part) => ofLayers.some((name) => name.endsWith(`.${part}`)));
  const words = /** @type {Record<string, string>} */ ({ attention_bias: "bias", feed_forward: "feed-forward" });
  return {
    cells: rows.map((row) => columns.map((part) => `${row.replace(" ", ".")}.${part}`).map((name) => (names.includes(name) ? name : null))),
    rows, columns: columns.map((part) => words[part] ?? part.replace(".", " ")),
  };
}

/** @param {Tensor} x */
const same = (x) => x;
