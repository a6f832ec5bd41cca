/**
 * Recurrent layers, one step at a time.
 *
 * Letters: E width of the input, D width of the state, G gates. The state of a layer is a list of vectors (1, D): [h], or
 * [h, c] for an LSTM. The state of several layers is a list of those, bottom layer first.
 *
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {Tensor[]} LayerState
 */

import { sigmoid } from "./layers.js";
import { add, beside, columns, linear, map, multiply, rowsAt, scoped, tapped, widthOf, zeros, zip } from "./tensors.js";

/**
 * Compute h' = tanh(W x + U h) (Elman 1990).
 * @param {Tensor} fromInput W x + b
 * @param {Tensor} fromState U h + b'
 */
export function rnnStep(fromInput, fromState) {
  return [map(add(fromInput, fromState), Math.tanh)];
}

/**
 * Compute r, z = σ(W x + U h); n = tanh(W x + r ∘ U h); h' = (1 - z) ∘ n + z ∘ h (Cho 2014, section 2.3).
 *
 * As in PyTorch, the reset gate r multiplies U h, where Cho has U(r ∘ h); z keeps the old state.
 * @param {Tensor} fromInput (1, 3·D)
 * @param {Tensor} fromState (1, 3·D)
 * @param {LayerState} state
 * @param {Tap} [tap] receives r as "reset", z as "keep" and n as "new"
 */
export function gruStep(fromInput, fromState, [hidden], tap = null) {
  const [ofReset, ofKeep, ofNew] = thirds(fromInput);
  const [stateReset, stateKeep, stateNew] = thirds(fromState);
  const reset = tapped(tap, "reset", map(add(ofReset, stateReset), sigmoid));
  const keep = tapped(tap, "keep", map(add(ofKeep, stateKeep), sigmoid));
  const fresh = tapped(tap, "new", map(add(ofNew, multiply(reset, stateNew)), Math.tanh));
  return [add(fresh, multiply(keep, zip(hidden, fresh, (old, next) => old - next)))];
}

/** Return the three gates of a GRU, which are side by side. @param {Tensor} x */
function thirds(x) {
  const width = widthOf(x) / 3;
  return [0, 1, 2].map((gate) => columns(x, gate * width, (gate + 1) * width));
}

/**
 * Compute one LSTM step (Hochreiter 1997, Gers 2000); the gates are in the order i, f, g, o.
 *
 * i, f, o = σ(W x + U h); g = tanh(W x + U h); c' = f ∘ c + i ∘ g; h' = o ∘ tanh(c').
 * @param {Tensor} fromInput (1, 4·D)
 * @param {Tensor} fromState (1, 4·D)
 * @param {LayerState} state
 * @param {Tap} [tap] receives i as "write", f as "keep", g as "new", o as "read" and c' as "cell"
 */
export function lstmStep(fromInput, fromState, [, cell], tap = null) {
  const [sums, width] = [add(fromInput, fromState), widthOf(cell)];
  const gate = (/** @type {number} */ i, /** @type {string} */ name, /** @type {(x: number) => number} */ f) =>
    tapped(tap, name, map(columns(sums, i * width, (i + 1) * width), f));
  const [write, keep] = [gate(0, "write", sigmoid), gate(1, "keep", sigmoid)];
  const [fresh, read] = [gate(2, "new", Math.tanh), gate(3, "read", sigmoid)];
  const next = tapped(tap, "cell", add(multiply(keep, cell), multiply(write, fresh)));
  return [multiply(read, map(next, Math.tanh)), next];
}

/**
 * Return a tap that joins the tensors of the steps along T, and passes them on with `flush`: (1, …, 1, ·) → (1, …, T, ·).
 * @param {Tap} tap
 */
export function joining(tap) {
  /** @type {Map<string, Tensor[]>} */
  const steps = new Map();
  return {
    tap: tap && ((/** @type {string} */ name, /** @type {Tensor} */ x) => void steps.set(name, [...(steps.get(name) ?? []), x])),
    flush() {
      for (const [name, parts] of steps) {
        const shape = parts[0].shape.map((n, axis, all) => (axis === all.length - 2 ? parts.length * n : n));
        const data = new Float32Array(shape.reduce((product, n) => product * n, 1));
        parts.forEach((part, t) => data.set(part.data, t * part.data.length));
        tap?.(name, { shape, data });
      }
    },
  };
}

/** Step function of each cell, and the number of vectors in its state. @type {Record<string, {step: (x: Tensor, h: Tensor, state: LayerState, tap?: Tap) => LayerState, parts: number}>} */
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

  /**
   * Run one step of every layer of cells with one direction.
   * @param {Tensor} x (1, E)
   * @param {LayerState[]} states
   * @param {Tap} [tap] receives the gates of layer 0 as "0.…"
   * @returns {LayerState[]}
   */
  step(x, states, tap = null) {
    return this.layers.map(([{ ofInput, ofState }], layer) => {
      const state = states[layer];
      const next = this.cell.step(linear(x, ...ofInput), linear(state[0], ...ofState), state, scoped(tap, String(layer)));
      x = next[0];
      return next;
    });
  }

  /**
   * Run a sequence from zeros: `x` (T, E) → the top layer's states (T, D), and the last state of each layer.
   *
   * With two directions, outputs and last states are concatenated; the backward direction ends at the first token.
   * @param {Tensor} x
   * @param {Tap} [tap] receives gates and states of each layer and direction, in the order of reading: "0.forward.reset"
   * @returns {{outputs: Tensor, last: LayerState[]}}
   */
  run(x, tap = null) {
    const nTokens = x.shape[0];
    const last = this.layers.map((directions, layer) => {
      const found = directions.map(({ ofInput, ofState }, direction) => {
        const width = ofState[0].shape[1];
        const projected = linear(x, ...ofInput);
        const outputs = zeros(nTokens, width);
        const ofSteps = joining(scoped(tap, `${layer}.${direction === 0 ? "forward" : "backward"}`));
        let state = Array.from({ length: this.cell.parts }, () => zeros(1, width));
        for (let step = 0; step < nTokens; step++) {
          const t = direction === 0 ? step : nTokens - 1 - step;
          state = this.cell.step(rowsAt(projected, [t]), linear(state[0], ...ofState), state, ofSteps.tap);
          tapped(ofSteps.tap, "state", state[0]);
          outputs.data.set(state[0].data, t * width);
        }
        ofSteps.flush();
        return { outputs, state };
      });
      x = beside(...found.map(({ outputs }) => outputs));
      return Array.from({ length: this.cell.parts }, (_, part) => beside(...found.map(({ state }) => state[part])));
    });
    return { outputs: x, last };
  }
}
