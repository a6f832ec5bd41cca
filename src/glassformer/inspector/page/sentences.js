/**
 * Parts of sentences about tokens and parts of a model.
 *
 * @import { Token } from "./types.js"
 */

import { visible } from "./text.js";

/** @param {string} text */
export const quoted = (text) => `“${visible(text)}”`;

/** Name a token by its position. @param {Token[]} tokens @param {number} index */
export const tokenName = (tokens, index) => `token ${index} ${quoted(tokens[index]?.text ?? "")}`;

/** @param {string} text */
export const capital = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}`;

/**
 * Return a part of a model in words.
 * @param {string} name such as `decoder.0.head.3`, `decoder.0.feed_forward` or `embedding`
 */
export function partWords(name) {
  const [kind = "", layer, what, head] = name.split(".");
  if (layer === undefined) return `the ${kind.replace("_", " ")}`;
  const part = what === "head" ? `head ${head}` : what === "feed_forward" ? "the feed-forward" : "the bias of attention";
  return `${part} of layer ${layer} (${kind})`;
}
