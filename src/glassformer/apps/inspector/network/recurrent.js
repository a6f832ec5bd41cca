/**
 * Recurrent encoder-decoder, with the same interface as the Transformer: encoder, bridge, and a decoder without attention,
 * with attention before the step, or after it.
 *
 * Letters: T target length, S source length, E width of the embeddings, D width of the decoder, C width of the source vectors.
 *
 * @import { LayerState } from "./recurrence.js"
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {{kind: "none" | "before" | "after", score?: string, context_every_step?: boolean, input_feeding?: boolean, deep_output?: boolean}} AttentionConfig
 * @typedef {{
 *   kind: string, vocab_size: number, cell: string, n_layers: number, bidirectional: boolean, reverse_source: boolean, attention: AttentionConfig,
 * }} RecurrentConfig
 *
 * @typedef {{layers: LayerState[], attentional: Tensor | null, summary: Tensor, memory: {key: Tensor, value: Tensor} | null}} RecurrentState
 * `attentional` is h̃ of the step before, which the next step reads; `summary` (1, C) is the last state of the encoder.
 */

import { SingleHeadAttention } from "./attention.js";
import { tokenLogits } from "./heads.js";
import { Cells, joining } from "./recurrence.js";
import { add, beside, columns, linear, map, range, rowsAt, scoped, tapped, widthOf, zeros, zip } from "./tensors.js";

/** Return the rows of a matrix from last to first. @param {Tensor} x */
const backwards = (x) => rowsAt(x, range(0, x.shape[0]).reverse());

/**
 * Recurrent encoder hⱼ = f(E xⱼ, hⱼ₋₁), or [→hⱼ; ←hⱼ] with two directions (Bahdanau 2015, section 3.2). It maps ids (S,)
 * to the memory (S, C) and the last state of every layer.
 * @param {Weights} weights
 * @param {RecurrentConfig} config
 */
function recurrentEncoder(weights, { cell, n_layers, bidirectional, reverse_source }) {
  const tokens = weights.get("encoder.tokens.weight");
  const cells = new Cells(weights, "encoder.cells", cell, n_layers, bidirectional);
  return (/** @type {number[]} */ ids, /** @type {Tap} */ tap) => {
    const x = tapped(tap, "embeddings", rowsAt(tokens, ids));
    const { outputs, last } = cells.run(reverse_source ? backwards(x) : x, scoped(tap, "cells"));
    return { memory: tapped(tap, "memory", reverse_source ? backwards(outputs) : outputs), last };
  };
}

/**
 * Bridge from the encoder's last state to the decoder's first, in each layer h = tanh(W s) (Bahdanau 2015, A.2.2); an LSTM's cell is W c.
 * @param {Weights} weights
 * @param {number} nLayers
 * @param {boolean} hasCell
 */
function bridgeOf(weights, nLayers, hasCell) {
  const hidden = range(0, nLayers).map((i) => weights.linear(`bridge.hidden.${i}`));
  const cells = hasCell ? range(0, nLayers).map((i) => weights.linear(`bridge.cell.${i}`)) : null;
  return (/** @type {LayerState[]} */ last) => last.map(([state, cell], i) => {
    const first = map(linear(state, ...hidden[i]), Math.tanh);
    return cells ? [first, linear(cell, ...cells[i])] : [first];
  });
}

/**
 * Maxout tⱼ = max(t̃ⱼ, t̃ⱼ₊ₗ), t̃ = U s + V E y + C c (Bahdanau 2015, A.2.2; Goodfellow 2013), of a state s (1, D), an embedding
 * E y (1, E) and a context c (1, C).
 * @param {Weights} weights
 * @param {string} path
 */
function maxoutReadout(weights, path) {
  const parts = ["state", "token", "context"].map((name) => weights.linear(`${path}.${name}_proj`));
  return (/** @type {Tensor[]} */ ...inputs) => {
    const sum = inputs.map((x, i) => linear(x, ...parts[i])).reduce(add);
    const half = widthOf(sum) / 2;
    return zip(columns(sum, 0, half), columns(sum, half, 2 * half), Math.max);
  };
}

/**
 * Recurrent decoder sₜ = f([E yₜ₋₁; fed], sₜ₋₁).
 *
 * Without attention, `fed` is the encoder's last state or nothing (Sutskever 2014, Cho 2014). Attention before the step
 * feeds its context (Bahdanau 2015). Attention after the step gives h̃ₜ = tanh(W[cₜ; sₜ]), and may feed h̃ₜ₋₁ (Luong 2015).
 */
class RecurrentDecoder {
  /** @param {Weights} weights @param {RecurrentConfig} config */
  constructor(weights, { cell, n_layers, attention }) {
    this.attention = attention;
    this.tokens = weights.get("decoder.tokens.weight");
    this.cells = new Cells(weights, "decoder.cells", cell, n_layers, false);
    this.crossAttn = attention.kind === "none" ? null : new SingleHeadAttention(weights, "decoder.cross_attn", attention.score ?? "");
    this.combine = attention.kind === "after" ? weights.linear("decoder.combine") : null;
    this.deepOutput = attention.deep_output ? maxoutReadout(weights, "decoder.deep_output") : null;
  }

  /**
   * Return the state before the first token.
   * @param {Tensor} memory (S, C)
   * @param {LayerState[]} first state of each layer
   * @param {Tensor} summary (1, C)
   */
  start(memory, first, summary) {
    const attentional = this.attention.kind === "after" && this.attention.input_feeding ? zeros(...first[first.length - 1][0].shape) : null;
    return { layers: first, attentional, summary, memory: this.crossAttn && this.crossAttn.projectMemory(memory) };
  }

  /** Return the context (1, W) of a decoder state (1, D). @param {Tensor} state @param {RecurrentState} of @param {Tap} tap */
  look(state, { memory }, tap) {
    const [crossAttn, keys] = [/** @type {SingleHeadAttention} */ (this.crossAttn), /** @type {{key: Tensor, value: Tensor}} */ (memory)];
    return tapped(tap, "cross_attn", crossAttn.forward(state, keys, scoped(tap, "cross_attn")));
  }

  /** Return the vector that is concatenated with the token in the input of the next step. @param {RecurrentState} state @param {Tap} tap @returns {Tensor | null} */
  fed(state, tap) {
    if (this.attention.kind === "before") return this.look(state.layers[state.layers.length - 1][0], state, tap);
    return this.attention.context_every_step ? state.summary : state.attentional;
  }

  /**
   * Run one step: return the input of the head (1, ·) and the new state.
   * @param {Tensor} embedded (1, E)
   * @param {RecurrentState} state
   * @param {Tap} tap
   */
  advance(embedded, state, tap) {
    const fed = this.fed(state, tap);
    const layers = this.cells.step(fed ? beside(embedded, fed) : embedded, state.layers, scoped(tap, "cells"));
    const hidden = tapped(tap, "hidden", layers[layers.length - 1][0]);
    const isBefore = this.attention.kind === "before";
    const context = this.combine ? this.look(hidden, state, tap) : isBefore && fed ? fed : state.summary;
    let read = this.combine ? map(linear(beside(context, hidden), ...this.combine), Math.tanh) : hidden;
    const attentional = state.attentional && read;
    if (this.deepOutput) read = this.deepOutput(read, embedded, context);
    return { read, state: { ...state, layers, attentional } };
  }
}

/** Recurrent encoder-decoder: an encoder reads the source, a bridge maps its last state, a decoder writes a target. */
export class RecurrentModel {
  /** @param {RecurrentConfig} config @param {Weights} weights @param {() => Promise<void>} pauseBetween */
  constructor(config, weights, pauseBetween) {
    this.pauseBetween = pauseBetween;
    this.encoder = recurrentEncoder(weights, config);
    this.bridge = weights.hasLinear("bridge.hidden.0") ? bridgeOf(weights, config.n_layers, config.cell === "lstm") : null;
    this.decoder = new RecurrentDecoder(weights, config);
    this.output = tokenLogits(weights, {});
    this.weights = weights;
  }

  /**
   * Encode the source, and return the state before the first token.
   * @param {number[]} sourceIds
   * @param {Tap} [tap]
   */
  async start(sourceIds, tap = null) {
    const { memory, last } = this.encoder(sourceIds, scoped(tap, "encoder"));
    return this.decoder.start(memory, this.bridge ? this.bridge(last) : last, last[last.length - 1][0]);
  }

  /**
   * Read ids (T,) after those of the state; return the logits (T, V), and the new state.
   * @param {number[]} ids
   * @param {RecurrentState} state
   * @param {Tap} [tap]
   */
  async step(ids, state, tap = null) {
    const embedded = tapped(scoped(tap, "decoder"), "embeddings", rowsAt(this.decoder.tokens, ids));
    const { tap: ofSteps, flush } = joining(tap);
    /** @type {Tensor[]} */
    const outputs = [];
    for (let t = 0; t < ids.length; t++) {
      await this.pauseBetween();
      const after = this.decoder.advance(rowsAt(embedded, [t]), state, scoped(ofSteps, "decoder"));
      tapped(ofSteps, "hidden", after.read);
      outputs.push(tapped(ofSteps, "logits", this.output(after.read)));
      state = after.state;
    }
    flush();
    const logits = zeros(ids.length, widthOf(outputs[0]));
    outputs.forEach((row, t) => logits.data.set(row.data, t * row.data.length));
    return { logits, state };
  }
}
