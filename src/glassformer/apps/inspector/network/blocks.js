/**
 * Transformer block: self-attention, cross-attention and feed-forward, each with a norm and a residual connection.
 *
 * @import { KeysAndValues, Mask } from "./attention.js"
 * @import { Layer } from "./layers.js"
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { StackConfig, TransformerConfig } from "./transformer.js"
 * @import { Weights } from "./weights.js"
 */

import { MultiHeadAttention } from "./attention.js";
import { feedForward, normOf } from "./layers.js";
import { add, scoped, tapped } from "./tensors.js";

/**
 * Inputs of a block other than the hidden states.
 * @typedef {{
 *   mask: Mask, rotary: {cos: Tensor, sin: Tensor} | null, memory: KeysAndValues | null, cache: KeysAndValues | null, tap: Tap,
 * }} BlockInputs
 */

/**
 * Return the sizes of an attention. A size of 0 in the settings is replaced by its default.
 * @param {TransformerConfig} config
 * @param {StackConfig} stack
 */
function attentionSizes(config, stack) {
  const d_head = stack.d_head || config.d_model / stack.n_heads;
  return {
    n_heads: stack.n_heads,
    n_kv_heads: stack.n_kv_heads || stack.n_heads,
    d_head,
    scale: config.attention_scale ?? 1 / Math.sqrt(d_head),
  };
}

/** Return true if the outputs of sublayers are normalised before they are added. @param {TransformerConfig} config */
export function hasOutNorms(config) {
  return ["sandwich", "output"].includes(config.norm_order);
}

/** Transformer block: self-attention, cross-attention (decoder with a memory only) and feed-forward (optional). */
export class Block {
  /** @param {Weights} weights @param {string} path @param {TransformerConfig} config @param {StackConfig} stack @param {boolean} hasMemory */
  constructor(weights, path, config, stack, hasMemory) {
    const sizes = attentionSizes(config, stack);
    this.selfAttn = new MultiHeadAttention(weights, `${path}.self_attn`, sizes, config);
    this.crossAttn = hasMemory ? new MultiHeadAttention(weights, `${path}.cross_attn`, sizes, config) : null;
    this.ff = stack.d_ff ? feedForward(weights, `${path}.ff`, config.activation) : null;
    this.order = config.norm_order;
    this.sharesNorm = config.norm_order === "parallel_shared";
    /** Norms by name. @type {Map<string, Layer>} */
    this.norms = new Map();
    for (const name of ["self_attn", ...(hasMemory ? ["cross_attn"] : []), ...(this.ff ? ["ff"] : [])]) {
      const isShared = name === "ff" && this.sharesNorm;
      if (this.order !== "output" && !isShared) this.norms.set(`${name}_norm`, normOf(weights, `${path}.${name}_norm`, config));
      if (hasOutNorms(config)) this.norms.set(`${name}_out_norm`, normOf(weights, `${path}.${name}_out_norm`, config));
    }
  }

  /**
   * Apply the block to `x` (T, D); return (T, D) and the new cache.
   * @param {Tensor} x
   * @param {BlockInputs} inputs
   */
  forward(x, { mask, rotary, memory, cache, tap }) {
    let newCache = cache;
    const input = x;
    let shared = x;
    x = this.connect(x, "self_attn", tap, (h, of) => {
      shared = h;
      const { y, cache: grown } = this.selfAttn.attendSelf(h, { mask, rotary, cache, tap: of });
      newCache = grown;
      return y;
    });
    const { crossAttn, ff } = this;
    if (crossAttn && memory) x = this.connect(x, "cross_attn", tap, (h, of) => crossAttn.attendCross(h, memory, of));
    if (ff && this.sharesNorm) x = add(x, tapped(tap, "ff", ff(shared, scoped(tap, "ff"))));
    else if (ff) x = this.connect(x, "ff", tap, (h, of) => ff(h, of), this.order === "parallel" ? input : x);
    return { x: tapped(tap, "residual", x), cache: /** @type {KeysAndValues} */ (newCache) };
  }

  /**
   * Connect a sublayer with the residual stream: x + sublayer(norm(x)) (pre), x + norm(sublayer(norm(x))) (sandwich, Ding
   * 2021), x + norm(sublayer(x)) (output), or norm(x + sublayer(x)) (post; Vaswani 2017, section 3.1). The sublayer reads
   * `input` in place of x (parallel).
   * @param {Tensor} x
   * @param {string} name
   * @param {Tap} tap
   * @param {(x: Tensor, tap: Tap) => Tensor} sublayer
   * @param {Tensor} input
   */
  connect(x, name, tap, sublayer, input = x) {
    const apply = (/** @type {Tensor} */ h) => tapped(tap, name, sublayer(h, scoped(tap, name)));
    if (this.order === "post") return this.norm(`${name}_norm`, add(x, apply(x)), tap);
    const added = apply(this.order === "output" ? input : this.norm(`${name}_norm`, input, tap));
    return add(x, this.norms.has(`${name}_out_norm`) ? this.norm(`${name}_out_norm`, added, tap) : added);
  }

  /** @param {string} name @param {Tensor} x @param {Tap} tap */
  norm(name, x, tap) {
    const norm = /** @type {Layer} */ (this.norms.get(name));
    return tapped(tap, name, norm(tapped(tap, `${name}.input`, x)));
  }
}
