/**
 * Transformer with an encoder, a decoder, or both: embeddings, stacks of blocks, and the model. A stack
 * computes once what all of its blocks read.
 *
 * @import { KeysAndValues } from "./attention.js"
 * @import { ScoreBias } from "./positions.js"
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {{layers: KeysAndValues[], memory: KeysAndValues[] | null, length: number}} TransformerState
 * Keys and values of the tokens that a decoder has read, and of the source. A step returns a new state. The old state
 * stays valid.
 *
 * @typedef {{
 *   n_layers: number, n_heads: number, n_kv_heads: number, d_head: number, d_ff: number, window_pattern: number[],
 * }} StackConfig
 *
 * @typedef {{
 *   kind: string, vocab_size: number, encoder: StackConfig | null, decoder: StackConfig | null, d_model: number, positions: {kind: string, layout?: string, offset?: number, ends_at_base?: boolean, max_distance?: number},
 *   norm: string, norm_eps: number, norm_order: string, final_norm: boolean, embedding_norm: boolean, qk_norm: boolean,
 *   activation: string, attention_scale: number | null, embedding_scale: number, logit_scale: number,
 *   head: {kind: string, pooling?: string, pooler?: string, normalize?: boolean, mean?: number, std?: number},
 * }} TransformerConfig
 * The settings that the forward pass reads; the others show in the names and sizes of the weights.
 */

import { allowedPairs } from "./attention_functions.js";
import { Block } from "./blocks.js";
import { headOf } from "./heads.js";
import { normOf } from "./layers.js";
import { addedPositions, alibiBias, relativeBias, rotaryAngles } from "./positions.js";
import { add, linear, map, range, rowsAt, scoped, tapped, widthOf } from "./tensors.js";

/**
 * Embedding layer: (tokens · scale + types + positions) → norm → projection. It maps ids (T,) at positions (T,) to (T, D). A
 * single text has the token type 0. The tap receives the rows of the tokens and of the positions.
 * @param {Weights} weights
 * @param {string} path
 * @param {TransformerConfig} config
 */
function embeddingsOf(weights, path, config) {
  const table = weights.get(`${path}.tokens.weight`);
  const added = addedPositions(weights, `${path}.positions`, config.positions, widthOf(table));
  const types = weights.find(`${path}.token_types.weight`);
  const norm = config.embedding_norm ? normOf(weights, `${path}.norm`, config) : null;
  const projection = weights.find(`${path}.projection.weight`);
  const scale = config.embedding_scale || Math.sqrt(config.d_model);
  return (/** @type {number[]} */ ids, /** @type {number[]} */ positions, /** @type {Tap} */ tap) => {
    let x = tapped(tap, "tokens", rowsAt(table, ids));
    if (scale !== 1) x = map(x, (value) => value * scale);
    if (types) x = add(x, rowsAt(types, ids.map(() => 0)));
    if (added) x = add(x, tapped(tap, "positions", added(positions)));
    if (norm) x = norm(x);
    return projection ? linear(x, projection) : x;
  };
}

/** Encoder stack (each token attends to all tokens) or decoder stack (each token attends to itself and earlier tokens). */
export class Stack {
  /**
   * @param {Weights} weights
   * @param {"encoder" | "decoder"} name
   * @param {TransformerConfig} config
   * @param {() => Promise<void>} pauseBetween pauses between two blocks, so that the page stays responsive
   */
  constructor(weights, name, config, pauseBetween) {
    const stack = /** @type {StackConfig} */ (config[name]);
    this.name = name;
    this.causal = name === "decoder";
    this.pauseBetween = pauseBetween;
    this.embeddings = embeddingsOf(weights, `${name}.embeddings`, config);
    const hasMemory = this.causal && config.encoder !== null;
    this.blocks = range(0, stack.n_layers).map((i) => new Block(weights, `${name}.blocks.${i}`, config, stack, hasMemory));
    const pattern = stack.window_pattern.length ? stack.window_pattern : [0];
    this.windows = this.blocks.map((_, i) => pattern[i % pattern.length]);
    this.finalNorm = config.final_norm ? normOf(weights, `${name}.final_norm`, config) : null;
    const { kind, max_distance } = config.positions;
    this.rotary = kind === "rotary" ? rotaryAngles(weights, `${name}.rotaries.0`) : null;
    /** @type {ScoreBias | null} */
    this.scoreBias = null;
    if (kind === "alibi") this.scoreBias = alibiBias(weights, `${name}.score_bias`);
    if (kind === "relative") this.scoreBias = relativeBias(weights, `${name}.score_bias`, max_distance ?? 0, !this.causal);
  }

  /** Return the names of the embeddings and of each block, with the names of the tensors of the residual stream after them. @returns {[string, string][]} */
  residuals() {
    return [["embeddings", `${this.name}.embeddings`], ...this.blocks.map((_, i) => /** @type {[string, string]} */ ([`block ${i}`, `${this.name}.blocks.${i}.residual`]))];
  }

  /** Return the names of the blocks, with the names of the tensors of the contexts of their heads. @returns {[string, string][]} */
  contexts() {
    return this.blocks.map((_, i) => [`block ${i}`, `${this.name}.blocks.${i}.self_attn.context`]);
  }

  /**
   * Add ids (T,) to the tokens of a state; return the states (T, D) of the new tokens, and the new state.
   * @param {number[]} ids
   * @param {TransformerState} state
   * @param {Tap} [tap]
   */
  async step(ids, state, tap = null) {
    const [queries, keys] = [range(state.length, state.length + ids.length), range(0, state.length + ids.length)];
    const rotary = this.rotary?.(queries) ?? null;
    const bias = this.scoreBias?.(queries, keys) ?? null;
    let x = tapped(tap, "embeddings", this.embeddings(ids, queries, scoped(tap, "embeddings")));
    const layers = [];
    for (const [i, block] of this.blocks.entries()) {
      await this.pauseBetween();
      const mask = { allowed: allowedPairs(queries, keys, { causal: this.causal, window: this.windows[i] }), bias };
      const inputs = { mask, rotary, memory: state.memory?.[i] ?? null, cache: state.layers[i] ?? null, tap: scoped(tap, `blocks.${i}`) };
      const after = block.forward(x, inputs);
      x = after.x;
      layers.push(after.cache);
    }
    if (this.finalNorm) x = tapped(tap, "final_norm", this.finalNorm(tapped(tap, "final_norm.input", x)));
    return { x: tapped(tap, "final", x), state: { ...state, layers, length: keys.length } };
  }
}

/** @type {TransformerState} */
export const EMPTY = { layers: [], memory: null, length: 0 };

/** Transformer with an encoder (as BERT), a decoder (as GPT), or both with cross-attention (the original). */
export class Transformer {
  /** @param {TransformerConfig} config @param {Weights} weights @param {() => Promise<void>} pauseBetween */
  constructor(config, weights, pauseBetween) {
    this.encoder = config.encoder && new Stack(weights, "encoder", config, pauseBetween);
    this.decoder = config.decoder && new Stack(weights, "decoder", config, pauseBetween);
    this.output = headOf(weights, config);
    this.weights = weights;
  }

  /** The stack whose output the head reads: the decoder, or else the encoder. */
  get headStack() {
    return /** @type {Stack} */ (this.decoder ?? this.encoder);
  }

  /**
   * Return the state before the first token of a decoder; encode the source once.
   * @param {number[]} sourceIds empty for a model without an encoder
   * @param {Tap} [tap]
   */
  async start(sourceIds, tap = null) {
    if (!this.encoder || !this.decoder) return EMPTY;
    const { x: memory } = await this.encoder.step(sourceIds, EMPTY, scoped(tap, "encoder"));
    const projected = this.decoder.blocks.map(({ crossAttn }) => /** @type {NonNullable<typeof crossAttn>} */ (crossAttn).projectMemory(memory));
    return { ...EMPTY, memory: projected };
  }

  /**
   * Read ids (T,) after those of the state; return the output of the head, and the new state.
   * @param {number[]} ids
   * @param {TransformerState} state
   * @param {Tap} [tap]
   */
  async step(ids, state, tap = null) {
    const after = await this.headStack.step(ids, state, scoped(tap, this.headStack.name));
    tapped(tap, "hidden", after.x);
    return { logits: tapped(tap, "logits", this.output(after.x)), state: after.state };
  }

  /**
   * Return the output of the head for a residual stream (T, D). With `norm`, apply the final norm first.
   * @param {Tensor} x
   * @param {boolean} norm
   */
  lens(x, norm) {
    const { finalNorm } = this.headStack;
    return this.output(norm && finalNorm ? finalNorm(x) : x);
  }
}
