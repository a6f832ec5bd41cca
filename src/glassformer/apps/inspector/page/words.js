/** Glossary of the page, with the chapter of the course for each word. */

import { h } from "./dom.js";

const WORDS = /** @type {[word: string, meaning: string, chapter: number | null][]} */ ([
  ["token", "A piece of text with a number (id), the unit that the model reads and writes.", 1],
  ["attention map", "A table of weights: row i contains how much token i (the query) reads from each token (the keys). The weights of a row sum to 1.", 4],
  ["head", "One of the parallel attentions of a layer. Each head has its own attention map.", 5],
  ["residual stream", "The vector of a position: the embedding, to which each attention and each feed-forward adds its output.", 6],
  ["logit", "The score that the model gives to a token of its vocabulary. Softmax turns all logits into probabilities.", 2],
  ["nat", "The unit of −log p with the natural logarithm: 0.69 nats are 1 bit. −log p is 0 nats for p = 1, and 2.3 nats for p = 0.1.", 2],
  ["loss, perplexity", "The mean of −log p of the actual tokens, in nats, and its exponential.", 9],
  ["entropy", "The uncertainty of a prediction. It is 0 nats if one token has probability 1, and largest if all tokens have equal probability.", null],
]);

/** Return the list of words, which opens with a click. */
export function wordList() {
  return h("details", { class: "words" }, h("summary", { class: "quiet" }, "What do the words mean?"),
    h("dl", {}, ...WORDS.flatMap(([word, meaning, chapter]) => [h("dt", {}, word), h("dd", {}, meaning, chapter ? ` In the course: chapter ${chapter}.` : null)])));
}
