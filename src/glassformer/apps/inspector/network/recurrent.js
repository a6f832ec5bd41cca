/**
 * Recurrent encoder-decoder, with the same interface as the Transformer.
 *
 * @import { RecurrentConfig, RecurrentState } from "./recurrent_stacks.js"
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 */

import { tokenLogits } from "./heads.js";
import { joining } from "./recurrence.js";
import { Bridge, RecurrentDecoder, RecurrentEncoder } from "./recurrent_stacks.js";
import { rowAt, rowsAt, scoped, tapped } from "./tensors.js";

/** Recurrent encoder-decoder: an encoder reads the source, a bridge maps its last state, a decoder writes a target. */
export class RecurrentModel {
  /** @param {RecurrentConfig} config @param {Weights} weights @param {() => Promise<void>} pauseBetween */
  constructor(config, weights, pauseBetween) {
    this.pauseBetween = pauseBetween;
    this.encoder = new RecurrentEncoder(weights, config);
    this.bridge = weights.hasLinear("bridge.hidden.0") ? new Bridge(weights, config.n_layers, config.cell === "lstm") : null;
    this.decoder = new RecurrentDecoder(weights, config);
    this.output = tokenLogits(weights, {});
  }

  /**
   * Encode the source, and return the state before the first token.
   * @param {number[]} sourceIds
   * @param {Tap} [tap]
   * @returns {Promise<RecurrentState>}
   */
  async start(sourceIds, tap = null) {
    const { memory, last } = this.encoder.forward(sourceIds, scoped(tap, "encoder"));
    return this.decoder.start(memory, this.bridge ? this.bridge.forward(last) : last, last[last.length - 1][0]);
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
      const after = this.decoder.advance(rowAt(embedded, t), state, scoped(ofSteps, "decoder"));
      tapped(ofSteps, "hidden", after.read);
      outputs.push(tapped(ofSteps, "logits", this.output(after.read)));
      state = after.state;
    }
    flush();
    const logits = { shape: [ids.length, outputs[0].shape[1]], data: new Float32Array(ids.length * outputs[0].shape[1]) };
    outputs.forEach((row, t) => logits.data.set(row.data, t * row.data.length));
    return { logits, state };
  }
}
