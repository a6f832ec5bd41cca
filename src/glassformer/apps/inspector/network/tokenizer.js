/**
 * Convert text to ids and back, with the rules of glassformer's schemes: chunks, symbols, merges
 * (`tokenization/schemes.py`).
 *
 * The browser defines the character classes. The `tokenizers` library uses an earlier Unicode version, so it may split
 * a text differently at characters that a later version added (Unicode 17 added 4,700).
 *
 * @typedef {"byte" | "char" | "word" | "whitespace" | "whole_words"} Scheme
 * @typedef {{
 *   scheme: Scheme, tokens: string[], merges: [left: number, right: number][], special: number[], unknown: number | null,
 * }} Vocabulary
 * `tokens` are in the order of their ids, as in `tokenizer.json`. A merge is a pair of ids.
 */

import { ServerError } from "../page/source.js";

const SPACE = "\\p{White_Space}";
const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
/** Regular expression of the chunks of each scheme. The expression of `byte` equals GPT-2's (Radford 2019). @type {Record<Scheme, RegExp>} */
const CHUNKS = {
  byte: new RegExp(`'(?:[stmd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!\\P{White_Space})|${SPACE}+`, "gu"),
  char: /[^\n]*\n|[^\n]+/gu,
  word: new RegExp(`[^${SPACE}]+`, "gu"),
  whitespace: new RegExp(`[${WORD}]+|[^${WORD}${SPACE}]+`, "gu"),
  whole_words: new RegExp(`[^${SPACE}]+`, "gu"),
};
/** Character of the vocabulary that marks the end of a word. In a text, it is replaced by U+FFFD. */
const END_OF_WORD = "␣";

/** Error for a text that the model cannot read, like the error of a server for a wrong request. The page shows its message. */
export class TextError extends ServerError {
  /** @param {string} message */
  constructor(message) {
    super(message, 400);
  }
}

/** Return the character of each byte in the scheme `byte`: printable Latin-1 keeps its code, the others follow from U+0100. */
function byteCharacters() {
  let other = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const isPrintable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
    return String.fromCharCode(isPrintable ? byte : other++);
  });
}

const OF_BYTE = byteCharacters();
const TO_BYTE = new Map(OF_BYTE.map((character, byte) => [character, byte]));

/**
 * Return the symbols of a chunk.
 * @param {string} chunk
 * @param {Scheme} scheme
 */
function symbolsOf(chunk, scheme) {
  if (scheme === "byte") return Array.from(new TextEncoder().encode(chunk), (byte) => /** @type {string} */ (OF_BYTE[byte]));
  if (scheme === "whole_words") return [chunk];
  return scheme === "word" ? [...chunk.replaceAll(END_OF_WORD, "\ufffd"), END_OF_WORD] : [...chunk];
}

/** Return bytes as text, with bytes of incomplete characters as `<0x..>`. @param {Uint8Array} bytes */
export function readable(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const length = [1, 2, 3, 4].find((n) => isText(bytes.subarray(at, at + n)));
    const part = bytes.subarray(at, at + (length ?? 1));
    text += length ? new TextDecoder("utf-8", { ignoreBOM: true }).decode(part) : `<0x${Number(part[0]).toString(16).toUpperCase().padStart(2, "0")}>`;
    at += part.length;
  }
  return text;
}

/** Return true if bytes are one whole character or several. @param {Uint8Array} bytes */
function isText(bytes) {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
}

/** Remove white space around a text, as Python's `strip`. @param {string} text */
export function strip(text) {
  return text.replace(/^[\p{White_Space}\x1c-\x1f]+|[\p{White_Space}\x1c-\x1f]+$/gu, "");
}

/** Tokenizer of one of glassformer's schemes. */
export class Tokenizer {
  /** @param {Vocabulary} vocabulary */
  constructor({ scheme, tokens, merges, special, unknown }) {
    this.scheme = scheme;
    this.tokens = tokens;
    this.special = new Set(special);
    this.unknown = unknown;
    /** Ids of the tokens that a text may contain. */
    this.ordinary = new Map(tokens.map((token, id) => [token, id]));
    for (const id of special) this.ordinary.delete(/** @type {string} */ (tokens[id]));
    /** Rank and result of each merge. @type {Map<number, {rank: number, id: number}>} */
    this.merges = new Map(merges.map(([left, right], rank) =>
      [left * tokens.length + right, { rank, id: /** @type {number} */ (this.ordinary.get(`${tokens[left]}${tokens[right]}`)) }]));
    /** Bytes that each token adds to a text. */
    this.pieces = tokens.map((token, id) => this.bytesOf(token, this.special.has(id)));
  }

  /** @param {string} token @param {boolean} isSpecial */
  bytesOf(token, isSpecial) {
    if (this.scheme === "byte" && !isSpecial) return Uint8Array.from([...token], (x) => TO_BYTE.get(x) ?? 0);
    if (this.scheme === "word" && !isSpecial) token = token.replaceAll(END_OF_WORD, " ");
    else if (this.isApart) token = ` ${token}`;
    return new TextEncoder().encode(token);
  }

  /** True if decoded tokens are separated by spaces. */
  get isApart() {
    return this.scheme === "whitespace" || this.scheme === "whole_words";
  }

  /**
   * Return the ids of a text. A special token is ordinary text, unless `allowed` names it.
   * @param {string} text
   * @param {string} [allowed]
   * @returns {number[]}
   */
  encode(text, allowed = "") {
    if (/\p{Surrogate}/u.test(text)) throw new TextError("the text has half of a character (a lone surrogate): remove it");
    if (allowed) {
      const id = this.tokens.indexOf(allowed);
      return text.split(allowed).flatMap((piece, i) => (i ? [id, ...this.encode(piece)] : this.encode(piece)));
    }
    return (text.match(CHUNKS[this.scheme]) ?? []).flatMap((chunk) => this.merged(this.known(symbolsOf(chunk, this.scheme))));
  }

  /** Return the ids of a text whose special tokens are encoded as ordinary text, each run of them apart. @param {string} text */
  encodeApart(text) {
    const names = [...this.special].map((id) => /** @type {string} */ (this.tokens[id])).sort((a, b) => b.length - a.length);
    const one = names.map((name) => name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("|");
    return (one ? text.split(new RegExp(`((?:${one})+)`, "u")) : [text]).flatMap((piece) => this.encode(piece));
  }

  /** Return the ids of symbols. A run of unknown symbols becomes one unknown token. @param {string[]} symbols */
  known(symbols) {
    /** @type {number[]} */
    const ids = [];
    for (const symbol of symbols) {
      const id = this.ordinary.get(symbol) ?? this.unknown;
      if (id === null) throw new TextError(`the vocabulary does not contain ${symbol}, and it has no token for unknown text: remove it`);
      if (id !== this.unknown || ids[ids.length - 1] !== id) ids.push(id);
    }
    return ids;
  }

  /** Merge adjacent symbols: lowest rank first, leftmost first for equal ranks, until no merge is possible. @param {number[]} ids */
  merged(ids) {
    for (;;) {
      let best = null;
      let at = 0;
      for (let i = 0; i + 1 < ids.length; i++) {
        const merge = this.merges.get(/** @type {number} */ (ids[i]) * this.tokens.length + /** @type {number} */ (ids[i + 1]));
        if (merge && (best === null || merge.rank < best.rank)) [best, at] = [merge, i];
      }
      if (best === null) return ids;
      ids.splice(at, 2, best.id);
    }
  }

  /** Return the text of ids, without special tokens other than the unknown one. @param {number[]} ids */
  decode(ids) {
    const shown = ids.filter((id) => !this.special.has(id) || id === this.unknown);
    const bytes = shown.flatMap((id) => [...(this.pieces[id] ?? [])]);
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
    if (this.isApart) return text.replace(/^ /, "");
    return this.scheme === "word" ? text.replace(/ $/, "") : text;
  }

  /** Return a token in readable form. @param {number} id */
  shown(id) {
    const token = /** @type {string} */ (this.tokens[id]);
    if (this.special.has(id) || this.scheme === "char" || this.isApart) return token;
    if (this.scheme === "word") return token.replaceAll(END_OF_WORD, "</w>");
    return readable(/** @type {Uint8Array} */ (this.pieces[id]));
  }

  /** Return one sentence about the parts of a text that become the unknown token; empty without such parts. @param {string} text */
  unknownIn(text) {
    const has = (/** @type {string} */ part) => this.encode(part).includes(/** @type {number} */ (this.unknown));
    if (this.unknown === null || !has(text)) return "";
    const name = /** @type {string} */ (this.tokens[this.unknown]);
    const words = [...new Set(text.replaceAll(name, " ").split(/[\p{White_Space}\x1c-\x1f]+/u))].filter((word) => word && has(word));
    const characters = [...new Set(words.flatMap((word) => [...word]))].filter(has);
    const parts = this.scheme !== "whole_words" && characters.length ? characters : words;
    const more = parts.length > 10 ? ` and ${parts.length - 10} more` : "";
    return parts.length ? `The vocabulary does not contain ${parts.slice(0, 10).join(", ")}${more}: the model reads ${name} there.` : "";
  }
}
