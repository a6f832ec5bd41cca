/**
 * Embedding layer: token ids to the first hidden states.
 *
 * @import { Layer } from "./norms.js"
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { TransformerConfig } from "./transformer.js"
 * @import { Weights } from "./weights.js"
 */

import { normOf } from "./norms.js";
import { addedPositions } from "./positions.js";
import { add, linear, map, rowsAt, tapped, widthOf } from "./tensors.js";

/** Embedding layer: (tokens · scale + types + positions) → norm → projection. */
export class Embeddings {
  /** @param {Weights} weights @param {string} path @param {TransformerConfig} config */
  constructor(weights, path, config) {
    this.tokens = weights.get(`${path}.tokens.weight`);
    this.positions = addedPositions(weights, `${path}.positions`, config.positions, widthOf(this.tokens));
    this.tokenTypes = weights.find(`${path}.token_types.weight`);
    /** @type {Layer} */
    this.norm = config.embedding_norm ? normOf(weights, `${path}.norm`, config) : (x) => x;
    this.projection = weights.find(`${path}.projection.weight`);
    this.scale = config.embedding_scale || Math.sqrt(config.d_model);
  }

  /**
   * Embed ids (T,) at positions (T,): (T, D). A single text has the token type 0.
   * @param {number[]} ids
   * @param {number[]} positions
   * @param {Tap} tap receives the rows of the tokens and of the positions
   * @returns {Tensor}
   */
  forward(ids, positions, tap) {
    let x = tapped(tap, "tokens", rowsAt(this.tokens, ids));
    if (this.scale !== 1) x = map(x, (value) => value * this.scale);
    if (this.tokenTypes) x = add(x, rowsAt(this.tokenTypes, ids.map(() => 0)));
    if (this.positions) x = add(x, tapped(tap, "positions", this.positions(positions)));
    x = this.norm(x);
    return this.projection ? linear(x, this.projection) : x;
  }
}
