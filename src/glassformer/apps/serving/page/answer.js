/**
 * The text that a model writes, token by token, with the probability of each token.
 *
 * @typedef {{text: string, log_prob: number}} Alternative
 * @typedef {{text: string, id: number, log_prob: number, top: Alternative[]}} Token
 * @typedef {{text: string, tokens: Token[]}} Piece
 * A text with its tokens. A character of several tokens is one piece.
 *
 * @typedef {{text: string, tokens: Token[], finish: "stop" | "length" | null, left_out: number}} Part
 */

/**
 * Return a part of a stream of `/v1/chat/completions`.
 * @param {any} part
 */
export function chatPart(part) {
  const [choice] = part.choices;
  const tokens = (choice?.logprobs?.content ?? []).map((/** @type {any} */ one) => ({
    text: one.token, id: one.id, log_prob: one.logprob,
    top: one.top_logprobs.map((/** @type {any} */ top) => ({ text: top.token, log_prob: top.logprob })),
  }));
  return { text: choice?.delta.content ?? "", tokens, finish: choice?.finish_reason ?? null, left_out: part.left_out ?? 0 };
}

/**
 * Return a part of a stream of `/v1/completions`.
 * @param {any} part
 */
export function textPart(part) {
  const [choice] = part.choices;
  const { tokens = [], ids = [], token_logprobs: logProbs = [], top_logprobs: tops = [] } = choice?.logprobs ?? {};
  const found = tokens.map((/** @type {string} */ text, /** @type {number} */ i) => ({
    text, id: ids[i], log_prob: logProbs[i], top: Object.entries(tops[i] ?? {}).map(([one, logProb]) => ({ text: one, log_prob: Number(logProb) })),
  }));
  return { text: choice?.text ?? "", tokens: found, finish: choice?.finish_reason ?? null, left_out: 0 };
}

/**
 * Return true if a text can continue with a token. It cannot continue with a special token, or with a part of a
 * character, which the server shows as `bytes:` and its bytes.
 * @param {string} text
 * @param {string[]} specialTokens
 */
export function isWritable(text, specialTokens) {
  return text !== "" && !text.startsWith("bytes:\\x") && !specialTokens.includes(text);
}

/** The pieces of a text, and how it ended. */
export class Answer {
  /**
   * Begin with pieces that the model continues.
   * @param {string} model
   * @param {Piece[]} [begun]
   */
  constructor(model, begun = []) {
    this.model = model;
    this.pieces = [...begun];
    this.n_begun = begun.length;
    /** Tokens whose text is not complete. @type {Token[]} */
    this.held = [];
    /** The token that ended the text. @type {Token | null} */
    this.end = null;
    /** @type {"stop" | "length" | "stopped" | "problem" | null} */
    this.finish = null;
    this.problem = "";
    this.left_out = 0;
    /** Seconds until the first token, and until the last one. */
    this.first_s = 0;
    this.seconds = 0;
    this.n_new = 0;
    /** The largest number of new tokens that was asked for. @type {number | null} */
    this.limit = null;
    /** @type {number | null} */
    this.seed = null;
  }

  get text() {
    return this.pieces.map((piece) => piece.text).join("");
  }

  /** The text that the model was given to continue. */
  get begun() {
    return this.pieces.slice(0, this.n_begun).map((piece) => piece.text).join("");
  }

  /** The tokens that the model has written, without the one that ended the text. */
  get written() {
    return [...this.pieces.slice(this.n_begun).flatMap((piece) => piece.tokens), ...this.held];
  }

  /** exp of the mean of −log p of the tokens that the model has written, the last one included; NaN without tokens. */
  get perplexity() {
    const all = [...this.written, ...(this.end ? [this.end] : [])];
    return Math.exp(-all.reduce((sum, token) => sum + token.log_prob, 0) / all.length);
  }

  /**
   * Add a part that came some seconds after the request.
   * @param {Part} part
   * @param {number} seconds
   */
  add(part, seconds) {
    if (part.tokens.length) {
      if (!this.n_new) this.first_s = seconds;
      this.n_new += part.tokens.length;
      this.seconds = seconds;
    }
    this.left_out = Math.max(this.left_out, part.left_out);
    if (part.finish === "stop") this.end = part.tokens[0] ?? null;
    else this.held.push(...part.tokens);
    if (part.text || (part.finish && this.held.length)) {
      this.pieces.push({ text: part.text, tokens: this.held });
      this.held = [];
    }
    if (part.finish) this.finish = part.finish;
  }

  /**
   * Return the pieces before a piece, and another token in its place.
   * @param {number} place
   * @param {Alternative} alternative
   * @returns {Piece[]}
   */
  with(place, { text, log_prob }) {
    const shown = place ? text : text.replace(/^ /, "");
    const top = this.pieces[place]?.tokens.at(-1)?.top ?? this.end?.top ?? [];
    return [...this.pieces.slice(0, place), { text: shown, tokens: [{ text, id: -1, log_prob, top }] }];
  }
}

/**
 * Return the speed of an answer in tokens per second after the first one; NaN for fewer than two tokens.
 * @param {Answer} answer
 */
export function speed({ n_new: n, seconds, first_s: first }) {
  return n > 1 && seconds > first ? (n - 1) / (seconds - first) : NaN;
}
