/**
 * Attention with its weights: of many heads (projections, heads, scores, mask, softmax, values, output), and of one head over
 * the states of a recurrent encoder.
 *
 * @import { Allowed } from "./attention_functions.js"
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {{n_heads: number, n_kv_heads: number, d_head: number, scale: number}} AttentionSizes
 * @typedef {{key: Tensor, value: Tensor}} KeysAndValues (G, S, K) and (G, S, W)
 * @typedef {{allowed: Allowed, bias: Tensor | null}} Mask
 */

import { additiveScores, attentionReference, contextOf, multiplicativeScores } from "./attention_functions.js";
import { normOf } from "./layers.js";
import { applyRotary } from "./positions.js";
import { after, columns, linear, map, reshaped, tapped, zeros } from "./tensors.js";

/**
 * Exchange the first two axes: (N, M, W) → (M, N, W).
 * @param {Float32Array} data
 * @param {number} n
 * @param {number} m
 */
function exchanged(data, n, m) {
  const [y, width] = [new Float32Array(data.length), data.length / (n * m)];
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < m; j++) y.set(data.subarray((i * m + j) * width, (i * m + j + 1) * width), (j * n + i) * width);
  }
  return y;
}

/** Split (T, H·K) into heads (H, T, K). @param {Tensor} x @param {number} nHeads @returns {Tensor} */
function splitHeads({ shape: [nTokens, total], data }, nHeads) {
  return { shape: [nHeads, nTokens, total / nHeads], data: exchanged(data, nTokens, nHeads) };
}

/** Concatenate heads (H, T, W) to (T, H·W). @param {Tensor} x @returns {Tensor} */
function joinHeads({ shape: [nHeads, nTokens, width], data }) {
  return { shape: [nTokens, nHeads * width], data: exchanged(data, nHeads, nTokens) };
}

/** Multi-head attention: MultiHead(Q, K, V) = Concat(head₁ … head_H) W_O (Vaswani 2017, section 3.2.2). */
export class MultiHeadAttention {
  /**
   * @param {Weights} weights
   * @param {string} path
   * @param {AttentionSizes} sizes
   * @param {{norm: string, norm_eps: number, qk_norm: boolean}} config
   */
  constructor(weights, path, sizes, config) {
    this.sizes = sizes;
    const projection = (/** @type {string} */ name) =>
      (weights.hasLinear(`${path}.${name}`) ? weights.linear(`${path}.${name}`) : null);
    this.qkv = projection("qkv_proj"); // one matrix for queries, keys and values
    this.q = projection("q_proj");
    this.k = projection("k_proj");
    this.v = projection("v_proj");
    this.out = weights.linear(`${path}.out_proj`);
    const norm = (/** @type {string} */ name) => (config.qk_norm ? normOf(weights, `${path}.${name}`, config) : (/** @type {Tensor} */ x) => x);
    this.qNorm = norm("q_norm");
    this.kNorm = norm("k_norm");
  }

  /**
   * Project `x` (T, D) to query (H, T, K), key (G, T, K) and value (G, T, W).
   * @param {Tensor} x
   */
  projectSelf(x) {
    const { n_heads, n_kv_heads, d_head } = this.sizes;
    if (!this.qkv) return { query: this.projectQuery(x), ...this.projectMemory(x) };
    const [endOfQuery, endOfKey] = [n_heads * d_head, (n_heads + n_kv_heads) * d_head];
    const all = linear(x, ...this.qkv);
    return {
      query: this.qNorm(splitHeads(columns(all, 0, endOfQuery), n_heads)),
      key: this.kNorm(splitHeads(columns(all, endOfQuery, endOfKey), n_kv_heads)),
      value: splitHeads(columns(all, endOfKey, endOfKey + n_kv_heads * d_head), n_kv_heads),
    };
  }

  /** @param {Tensor} x */
  projectQuery(x) {
    return this.qNorm(splitHeads(linear(x, .../** @type {[Tensor, Tensor | null]} */ (this.q)), this.sizes.n_heads));
  }

  /**
   * Project the encoder's output (S, D), once for all steps.
   * @param {Tensor} memory
   * @returns {KeysAndValues}
   */
  projectMemory(memory) {
    const [k, v] = /** @type {[Tensor, Tensor | null][]} */ ([this.k, this.v]);
    const { n_kv_heads } = this.sizes;
    return {
      key: this.kNorm(splitHeads(linear(memory, ...k), n_kv_heads)),
      value: splitHeads(linear(memory, ...v), n_kv_heads),
    };
  }

  /**
   * Attend from `x` (T, D) to itself and to the tokens of the cache; return (T, D) and the new cache.
   * @param {Tensor} x
   * @param {{mask: Mask, rotary: {cos: Tensor, sin: Tensor} | null, cache: KeysAndValues | null, tap: Tap}} inputs
   * @returns {{y: Tensor, cache: KeysAndValues}}
   */
  attendSelf(x, { mask, rotary, cache, tap }) {
    let { query, key, value } = this.projectSelf(x);
    if (rotary) [query, key] = [applyRotary(query, rotary), applyRotary(key, rotary)];
    if (cache) [key, value] = [after(cache.key, key), after(cache.value, value)];
    return { y: this.attend(query, { key, value }, mask, tap), cache: { key, value } };
  }

  /**
   * Attend from `x` (T, D) to a projected memory; return (T, D).
   * @param {Tensor} x
   * @param {KeysAndValues} memory
   * @param {Tap} tap
   */
  attendCross(x, memory, tap) {
    return this.attend(this.projectQuery(x), memory, { allowed: null, bias: null }, tap);
  }

  /** Return the value bias of each head, (1, H·W); zeros without a bias. Several query heads share a key-value head. */
  valueBias() {
    const { n_heads, n_kv_heads, d_head } = this.sizes;
    const [, bias = null] = this.qkv ?? this.v ?? [];
    const found = zeros(1, n_heads * d_head);
    const ofGroups = bias?.data.subarray(bias.data.length - n_kv_heads * d_head);
    for (let head = 0; ofGroups && head < n_heads; head++) {
      const group = Math.floor((head * n_kv_heads) / n_heads);
      found.data.set(ofGroups.subarray(group * d_head, (group + 1) * d_head), head * d_head);
    }
    return found;
  }

  /** @param {Tensor} query @param {KeysAndValues} memory @param {Mask} mask @param {Tap} tap @returns {Tensor} */
  attend(query, { key, value }, mask, tap) {
    for (const [name, x] of Object.entries({ query, key, value })) tapped(tap, name, x);
    return linear(joinHeads(attentionReference(query, key, value, mask, this.sizes.scale, tap)), ...this.out);
  }
}

/**
 * Attention context = Σⱼ softmaxⱼ(score(h, sⱼ)) vⱼ of a state h and memory sⱼ.
 *
 * "additive": vᵀ tanh(W₁h + W₂s) (Bahdanau 2015); "dot": hᵀs, "general": hᵀW s (Luong 2015, equation 8); "scaled_dot":
 * (W₁h)ᵀ(W₂s) / √A over the values W₃s (Vaswani 2017, equation 1, with one head).
 */
export class SingleHeadAttention {
  /** @param {Weights} weights @param {string} path @param {string} score */
  constructor(weights, path, score) {
    const projection = (/** @type {string} */ name) => {
      const weight = weights.find(`${path}.${name}.weight`);
      return weight ? (/** @type {Tensor} */ x) => linear(x, weight) : (/** @type {Tensor} */ x) => x;
    };
    this.q = projection("q_proj");
    this.k = projection("k_proj");
    this.v = projection("v_proj");
    this.vector = weights.find(`${path}.vector`);
    this.isScaled = score === "scaled_dot";
  }

  /** @param {Tensor} memory (S, C) @returns {{key: Tensor, value: Tensor}} (S, A) and (S, W) */
  projectMemory(memory) {
    return { key: this.k(memory), value: this.v(memory) };
  }

  /** @param {Tensor} query (T, A) @param {Tensor} key (S, A) @returns {Tensor} (T, S) */
  scores(query, key) {
    if (this.vector) return additiveScores(query, key, this.vector);
    const scores = multiplicativeScores(query, key);
    return this.isScaled ? map(scores, (x) => x / Math.sqrt(query.shape[1])) : scores;
  }

  /**
   * Return the context (T, W) of `state` (T, D).
   * @param {Tensor} state
   * @param {{key: Tensor, value: Tensor}} memory
   * @param {Tap} tap receives scores, weights and context with one head
   */
  forward(state, { key, value }, tap) {
    const scores = this.scores(this.q(state), key);
    return reshaped(contextOf(reshaped(scores, 1, ...scores.shape), null, reshaped(value, 1, ...value.shape), tap), state.shape[0], value.shape[1]);
  }
}
