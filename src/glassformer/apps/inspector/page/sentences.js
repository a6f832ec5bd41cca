/**
 * Parts of sentences about tokens and parts of a model.
 *
 * @import { Token } from "./types.js"
 */

import { percent, visible } from "./text.js";

/** An effect below this value is shown as 0.00. */
export const LEAST_EFFECT = 0.005;

/** Return labels in the order of their probabilities, the most probable one first. @template {{probability: number}} L @param {L[]} labels @returns {L[]} */
export const byProbability = (labels) => [...labels].sort((a, b) => b.probability - a.probability);

/**
 * Return the change of a probability in words. They state a direction only if the two numbers that are shown differ.
 * @param {number} was
 * @param {number} is
 */
export function changeOf(was, is) {
  const [before, after] = [percent(was), percent(is)];
  if (before === after) return before.startsWith("<") ? `stays below ${before.slice(1)}` : `stays at ${before}`;
  return `${is < was ? "falls" : "rises"} from ${before} to ${after}`;
}

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
