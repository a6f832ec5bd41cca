/**
 * Build the network of a file, and pause between the blocks of a large network.
 *
 * @import { RecurrentConfig } from "./recurrent_stacks.js"
 * @import { TransformerConfig } from "./transformer.js"
 */

import { RecurrentModel } from "./recurrent.js";
import { Transformer } from "./transformer.js";
import { Weights, readTensors } from "./weights.js";

/** Number of parameters above which a network pauses between two blocks, so that the page stays responsive. */
const LARGE = 10e6;

/**
 * Build a network from its settings and a safetensors file.
 * @param {TransformerConfig | RecurrentConfig} config
 * @param {Record<string, string>} tied other names of tied weights
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Transformer | RecurrentModel}
 */
export function buildNetwork(config, tied, bytes) {
  const tensors = readTensors(bytes);
  let size = 0;
  for (const { data } of tensors.values()) size += data.length;
  const pauseBetween = async () => {
    if (size > LARGE) await new Promise((resolve) => setTimeout(resolve));
  };
  const weights = new Weights(tensors, tied);
  if (config.kind === "recurrent") return new RecurrentModel(/** @type {RecurrentConfig} */ (config), weights, pauseBetween);
  return new Transformer(/** @type {TransformerConfig} */ (config), weights, pauseBetween);
}
