/**
 * Convert texts and pairs to ids with special tokens, and write a target by greedy search.
 *
 * @import { Example, Message } from "../page/types.js"
 * @import { RecurrentModel } from "./recurrent.js"
 * @import { Vocabulary } from "./tokenizer.js"
 * @import { Transformer } from "./transformer.js"
 *
 * @typedef {{
 *   before: number[], after: number[], source_before: number[], source_after: number[], target_before: number[],
 *   is_pair: boolean, start_id: number, end_id: number, never: number[], max_len: number, source_max_len: number,
 *   mask: {id: number, token: string} | null, chatml: {start: number, end: number} | null, beam: number,
 *   max_new_tokens: number, max_ratio: number,
 * }} Rules
 * The special tokens around a text, a source, a target and a message; the ids that generation never writes; the limits of a search.
 *
 * @typedef {{ids: number[], sourceIds: number[], note: string}} Input
 */

import { largest, logitsAt } from "./heads.js";
import { TextError, Tokenizer, strip } from "./tokenizer.js";

const MASK = "[MASK]";
const ROLES = ["system", "user", "assistant", "tool"];

/** Return ids. Throw an error if the list is empty or too long, or if an id is unknown. @param {string} what @param {number[]} ids @param {number} longest @param {Tokenizer} tokenizer */
function required(what, ids, longest, { tokens }) {
  if (!ids.length) throw new TextError(`the ${what} is empty: give at least one token`);
  if (ids.length > longest) throw new TextError(`the ${what} has ${ids.length} tokens and the model reads at most ${longest}: shorten it`);
  const isOutside = ids.some((id) => tokens[id] === undefined);
  if (isOutside) throw new TextError(`the ${what} has an id outside the vocabulary, whose ids are 0 to ${tokens.length - 1}`);
  return ids;
}

/** The tokenizers and the special tokens of a model. */
export class Reading {
  /** @param {Rules} rules @param {{target: Vocabulary, source: Vocabulary | null}} vocabularies */
  constructor(rules, { target, source }) {
    this.rules = rules;
    this.tokenizer = new Tokenizer(target);
    this.sourceTokenizer = source ? new Tokenizer(source) : this.tokenizer;
  }

  /** Return the ids of a text; `[MASK]` is a mask for a model that fills masks. @param {string} text */
  textIds(text) {
    const { before, after, mask } = this.rules;
    if (!mask || !text.includes(MASK)) return [...before, ...this.tokenizer.encode(text), ...after];
    const marked = text.replaceAll(MASK, mask.token);
    const closed = this.tokenizer.scheme === "byte" ? marked.replaceAll(` ${mask.token}`, mask.token) : marked;
    return [...before, ...this.tokenizer.encode(closed, mask.token), ...after];
  }

  /** @param {string} text */
  sourceIds(text) {
    return [...this.rules.source_before, ...this.sourceTokenizer.encode(strip(text)), ...this.rules.source_after];
  }

  /** @param {string} text */
  targetIds(text) {
    return [this.rules.start_id, ...this.rules.target_before, ...this.tokenizer.encode(text)];
  }

  /**
   * Return the ids of messages in ChatML; if the last one is not an answer, they end where the next answer begins.
   * A special token in a message is ordinary text. Unless the text from the role on begins with the tokens that a model
   * reads before it answers, the answer is encoded apart (`tokenization/conversations.py`).
   * @param {Message[]} messages
   */
  messageIds(messages) {
    const { chatml } = this.rules;
    if (!chatml) throw new TextError("the model in this file reads texts, and no messages");
    const plain = (/** @type {string} */ text) => this.tokenizer.encodeApart(text);
    const answer = plain("assistant\n");
    const ids = messages.flatMap(({ role, content }) => {
      if (!ROLES.includes(role)) throw new TextError(`the role ${role} is unknown: choose one of ${ROLES.join(", ")}`);
      const joined = plain(`${role}\n${content}`);
      const isApart = role === "assistant" && answer.some((id, i) => id !== joined[i]);
      return [chatml.start, ...(isApart ? [...answer, ...plain(content)] : joined), chatml.end, ...plain("\n")];
    });
    return messages[messages.length - 1]?.role === "assistant" ? ids : [...ids, chatml.start, ...answer];
  }

  /**
   * Return sentences about the parts of texts that become the unknown token.
   * @param {(string | null | undefined)[]} sources
   * @param {(string | null | undefined)[]} others
   */
  unknown(sources, others) {
    const ofSources = sources.map((text) => this.sourceTokenizer.unknownIn(text ?? ""));
    const ofOthers = others.map((text) => this.tokenizer.unknownIn(text ?? ""));
    return [...new Set([...ofSources, ...ofOthers])].filter(Boolean).join(" ");
  }

  /** Return the id of an answer. @param {string} text */
  answerId(text) {
    const ids = this.tokenizer.encode(text);
    if (ids.length === 1) return ids[0];
    throw new TextError(`the answer '${text}' has ${ids.length} tokens: give one token, with its leading space if it begins a word`);
  }

  /**
   * Return the ids that the network reads for an input of the page. Without a target, the network writes one.
   * @param {Example} example
   * @param {Transformer | RecurrentModel} network
   * @param {boolean} [cuts] leaves out the end of a text that is too long
   * @returns {Promise<Input>}
   */
  async input({ text = "", ids, source = "", target, messages }, network, cuts = false) {
    const { is_pair, max_len, source_max_len, beam } = this.rules;
    if (messages) {
      const all = this.messageIds(messages);
      const note = all.length > max_len ? `The model reads the first ${max_len} of ${all.length} tokens.` : "";
      return { ids: all.slice(0, max_len), sourceIds: [], note };
    }
    const checked = (/** @type {string} */ what, /** @type {number[]} */ all, /** @type {number} */ longest, /** @type {Tokenizer} */ tokenizer) =>
      required(what, cuts ? all.slice(0, longest) : all, longest, tokenizer);
    const isEmpty = is_pair ? strip(source) === "" : !ids && strip(text) === "";
    if (isEmpty) throw new TextError(`the ${is_pair ? "source" : "text"} is empty: give a text with at least one word`);
    if (!is_pair) return { ids: checked("text", ids ?? this.textIds(text), max_len, this.tokenizer), sourceIds: [], note: "" };
    const sourceIds = checked("source", this.sourceIds(source), source_max_len, this.sourceTokenizer);
    if (typeof target === "string") return { ids: checked("target", this.targetIds(target), max_len, this.tokenizer), sourceIds, note: "" };
    const written = this.tokenizer.decode(await this.greedy(sourceIds, network));
    const note = beam > 1 ? `The target is the result of a greedy search; translate uses a beam of ${beam}.` : "";
    return { ids: this.targetIds(written).slice(0, max_len), sourceIds, note };
  }

  /**
   * Return the ids of a line of a set of texts; a target may follow its source after a tab.
   * @param {string} line
   * @param {Transformer | RecurrentModel} network
   */
  lineInput(line, network) {
    const [source, target = null] = line.split("\t");
    return this.input(this.rules.is_pair ? { source, target } : { text: line }, network, true);
  }

  /**
   * Write a target by greedy search. Return its ids after the start token, up to the end token.
   * @param {number[]} sourceIds
   * @param {Transformer | RecurrentModel} network
   */
  async greedy(sourceIds, network) {
    const { start_id, target_before, end_id, max_len, max_new_tokens, max_ratio } = this.rules;
    const longest = Math.min(max_len, max_new_tokens, max_ratio ? Math.trunc(max_ratio * sourceIds.length) + 10 : Infinity);
    const written = [...target_before];
    let [next, state] = [[start_id, ...target_before], /** @type {any} */ (await network.start(sourceIds))];
    while (written.length < longest) {
      const after = await network.step(next, state);
      const [id] = largest(this.allowed(logitsAt(after.logits, next.length - 1)), 1);
      if (id === end_id) break;
      written.push(id);
      [next, state] = [[id], after.state];
    }
    return written;
  }

  /** Exclude the ids that generation never writes. @param {Float32Array} logits */
  allowed(logits) {
    for (const id of this.rules.never) logits[id] = -Infinity;
    return logits;
  }
}

/** Network with the state of the latest request. The ids of a request usually begin with those of the request before. */
export class Prefix {
  /** @param {Transformer | RecurrentModel} network */
  constructor(network) {
    this.network = network;
    /** @type {{ids: number[], source: string, state: any} | null} */
    this.read = null;
  }

  /**
   * Return the logits (V,) after ids.
   * @param {number[]} ids
   * @param {number[]} sourceIds
   */
  async logits(ids, sourceIds) {
    const source = sourceIds.join();
    const known = this.read;
    const isKnown = known !== null && known.source === source && known.ids.length < ids.length && known.ids.every((id, i) => id === ids[i]);
    const [begin, state] = isKnown ? [known.ids.length, known.state] : [0, await this.network.start(sourceIds)];
    const after = await this.network.step(ids.slice(begin), state);
    this.read = { ids, source, state: after.state };
    return logitsAt(after.logits, ids.length - begin - 1);
  }
}
