/**
 * Transformer with an encoder, a decoder, or both.
 *
 * @import { TransformerState } from "./stacks.js"
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {{
 *   n_layers: number, n_heads: number, n_kv_heads: number, d_head: number, d_ff: number, window_pattern: number[],
 * }} StackConfig
 *
 * @typedef {{
 *   kind: string, vocab_size: number, encoder: StackConfig | null, decoder: StackConfig | null, d_model: number, positions: {kind: string, layout?: string, offset?: number, ends_at_base?: boolean, max_distance?: number},
 *   norm: string, norm_eps: number, norm_order: string, shared_norm: boolean, final_norm: boolean, embedding_norm: boolean, qk_norm: boolean,
 *   activation: string, attention_scale: number | null, embedding_scale: number, logit_scale: number,
 *   head: {kind: string, pooling?: string, pooler?: string, normalize?: boolean, mean?: number, std?: number},
 * }} TransformerConfig
 * The settings that the forward pass reads; the others show in the names and sizes of the weights.
 */

import { headOf } from "./heads.js";
import { EMPTY, Stack } from "./stacks.js";
import { scoped, tapped } from "./tensors.js";

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
   * @returns {Promise<TransformerState>}
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
