/**
 * Recurrent layers, one step at a time.
 *
 * Letters: E width of the input, D width of the state, G gates. The state of a layer is a list of vectors (1, D): [h], or
 * [h, c] for an LSTM. The state of several layers is a list of those, bottom layer first.
 *
 * @import { Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {Tensor[]} LayerState
 */

import { sigmoid } from "./feedforward.js";
import { beside, linear, zeros } from "./tensors.js";

/**
 * Compute h' = tanh(W x + U h) (Elman 1990).
 * @param {Tensor} fromInput W x + b
 * @param {Tensor} fromState U h + b'
 * @returns {LayerState}
 */
export function rnnStep(fromInput, fromState) {
  const hidden = zeros(...fromInput.shape);
  for (let i = 0; i < hidden.data.length; i++) hidden.data[i] = Math.tanh(fromInput.data[i] + fromState.data[i]);
  return [hidden];
}

/**
 * Compute r, z = σ(W x + U h); n = tanh(W x + r ∘ U h); h' = (1 - z) ∘ n + z ∘ h (Cho 2014, section 2.3).
 *
 * As in PyTorch, the reset gate r multiplies U h, where Cho has U(r ∘ h); z keeps the old state.
 * @param {Tensor} fromInput (1, 3·D)
 * @param {Tensor} fromState (1, 3·D)
 * @param {LayerState} state
 * @returns {LayerState}
 */
export function gruStep(fromInput, fromState, [hidden]) {
  const width = hidden.data.length;
  const [x, h] = [fromInput.data, fromState.data];
  const next = zeros(1, width);
  for (let i = 0; i < width; i++) {
    const reset = sigmoid(x[i] + h[i]);
    const keep = sigmoid(x[width + i] + h[width + i]);
    const fresh = Math.tanh(x[2 * width + i] + reset * h[2 * width + i]);
    next.data[i] = fresh + keep * (hidden.data[i] - fresh);
  }
  return [next];
}

/**
 * Compute one LSTM step (Hochreiter 1997, Gers 2000); the gates are in the order i, f, g, o.
 *
 * i, f, o = σ(W x + U h); g = tanh(W x + U h); c' = f ∘ c + i ∘ g; h' = o ∘ tanh(c').
 * @param {Tensor} fromInput (1, 4·D)
 * @param {Tensor} fromState (1, 4·D)
 * @param {LayerState} state
 * @returns {LayerState}
 */
export function lstmStep(fromInput, fromState, [, cell]) {
  const width = cell.data.length;
  const [nextHidden, nextCell] = [zeros(1, width), zeros(1, width)];
  for (let i = 0; i < width; i++) {
    const [write, keep, fresh, read] = [0, 1, 2, 3].map((gate) => fromInput.data[gate * width + i] + fromState.data[gate * width + i]);
    nextCell.data[i] = sigmoid(keep) * cell.data[i] + sigmoid(write) * Math.tanh(fresh);
    nextHidden.data[i] = sigmoid(read) * Math.tanh(nextCell.data[i]);
  }
  return [nextHidden, nextCell];
}

/** Step of each cell, and its number of vectors in a state. @type {Record<string, {step: (x: Tensor, h: Tensor, state: LayerState) => LayerState, parts: number}>} */
const CELLS = { rnn: { step: rnnStep, parts: 1 }, gru: { step: gruStep, parts: 1 }, lstm: { step: lstmStep, parts: 2 } };

/** One or several recurrent layers, in one direction or both. */
export class Cells {
  /** @param {Weights} weights @param {string} path @param {string} cell @param {number} nLayers @param {boolean} bidirectional */
  constructor(weights, path, cell, nLayers, bidirectional) {
    this.cell = /** @type {typeof CELLS[string]} */ (CELLS[cell]);
    const of = (/** @type {string} */ name) => weights.get(`${path}.${name}`);
    /** Matrices of each layer and direction. */
    this.layers = Array.from({ length: nLayers }, (_, layer) => (bidirectional ? ["", "_reverse"] : [""]).map((direction) => ({
      ofInput: /** @type {[Tensor, Tensor]} */ ([of(`weight_ih_l${layer}${direction}`), of(`bias_ih_l${layer}${direction}`)]),
      ofState: /** @type {[Tensor, Tensor]} */ ([of(`weight_hh_l${layer}${direction}`), of(`bias_hh_l${layer}${direction}`)]),
    })));
  }

  /** @param {number} width @returns {LayerState} */
  zeroState(width) {
    return Array.from({ length: this.cell.parts }, () => zeros(1, width));
  }

  /**
   * Run one step of every layer of cells with one direction.
   * @param {Tensor} x (1, E)
   * @param {LayerState[]} states
   * @returns {LayerState[]}
   */
  step(x, states) {
    return this.layers.map(([{ ofInput, ofState }], layer) => {
      const state = states[layer];
      const next = this.cell.step(linear(x, ...ofInput), linear(state[0], ...ofState), state);
      x = next[0];
      return next;
    });
  }

  /**
   * Run a sequence from zeros: `x` (T, E) → the top layer's states (T, D), and the last state of each layer.
   *
   * With two directions, outputs and last states are concatenated; the backward direction ends at the first token.
   * @param {Tensor} x
   * @returns {{outputs: Tensor, last: LayerState[]}}
   */
  run(x) {
    const nTokens = x.shape[0];
    const last = this.layers.map((directions) => {
      const found = directions.map(({ ofInput, ofState }, direction) => {
        const width = ofState[0].shape[1];
        const projected = linear(x, ...ofInput);
        const outputs = zeros(nTokens, width);
        let state = this.zeroState(width);
        for (let step = 0; step < nTokens; step++) {
          const t = direction === 0 ? step : nTokens - 1 - step;
          const gates = projected.shape[1];
          const fromInput = { shape: [1, gates], data: projected.data.subarray(t * gates, (t + 1) * gates) };
          state = this.cell.step(fromInput, linear(state[0], ...ofState), state);
          outputs.data.set(state[0].data, t * width);
        }
        return { outputs, state };
      });
      x = beside(...found.map(({ outputs }) => outputs));
      return Array.from({ length: this.cell.parts }, (_, part) => beside(...found.map(({ state }) => state[part])));
    });
    return { outputs: x, last };
  }
}
