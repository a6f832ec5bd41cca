/**
 * Letters of several tokens. A byte-level tokenizer may split one letter (of Hebrew or Chinese, or an emoji) into
 * several tokens, whose readable form is a text such as `<0xD7>`. The page shows the whole letter above its tokens.
 *
 * @typedef {{first: number, n: number, text: string}} Letters the text of the `n` tokens from `first` on
 */

const BYTE = /<0x([0-9A-F]{2})>/;
const BYTES = new RegExp(BYTE, "g");
/** Largest number of tokens of one character. */
const MOST = 8;
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** Return the bytes of a readable token. @param {string} text @returns {number[]} */
function bytesOf(text) {
  return text.split(BYTE).flatMap((part, i) => (i % 2 ? [parseInt(part, 16)] : [...new TextEncoder().encode(part)]));
}

/** Decode UTF-8 bytes. Return null if they are invalid, and undefined if the last character is incomplete. @param {number[]} bytes */
function textOf(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes), { stream: true });
    return new TextEncoder().encode(text).length === bytes.length ? text : undefined;
  } catch {
    return null;
  }
}

/** Return the fewest tokens from a position on whose bytes are whole characters; null if the bytes are invalid. @param {string[]} texts @param {number} first @returns {Letters | null} */
function whole(texts, first) {
  /** @type {number[]} */
  const bytes = [];
  for (let n = 1; n <= MOST && first + n <= texts.length; n++) {
    bytes.push(...bytesOf(texts[first + n - 1] ?? ""));
    const text = textOf(bytes);
    if (text === null) return null;
    if (text !== undefined) return { first, n, text };
  }
  return null;
}

/**
 * Group tokens into letters, in order. Tokens with parts of one character are grouped, and so are characters of one
 * grapheme cluster, such as a letter and its accent. A token with invalid bytes is a group of its own.
 * @param {string[]} texts readable tokens
 * @returns {Letters[]}
 */
export function lettersOf(texts) {
  /** @type {Letters[]} */
  const found = [];
  /** @type {Letters[]} */
  let stretch = [];
  for (let i = 0; i < texts.length;) {
    const text = texts[i] ?? "";
    const one = BYTE.test(text) ? whole(texts, i) : { first: i, n: 1, text };
    if (one) stretch.push(one);
    else {
      found.push(...joined(stretch), { first: i, n: 1, text });
      stretch = [];
    }
    i += one?.n ?? 1;
  }
  return [...found, ...joined(stretch)];
}

/** Join neighbours of one grapheme cluster. A line end is not joined. @param {Letters[]} stretch @returns {Letters[]} */
function joined(stretch) {
  const text = stretch.map((one) => one.text).join("");
  const begins = new Set([...segmenter.segment(text)].map(({ index }) => index));
  /** @type {Letters[]} */
  const found = [];
  let at = 0;
  for (const one of stretch) {
    const last = found.at(-1);
    if (last && !begins.has(at) && text[at] !== "\n") found[found.length - 1] = { first: last.first, n: last.n + one.n, text: last.text + one.text };
    else found.push(one);
    at += one.text.length;
  }
  return found;
}

/**
 * Return one label per token. The label of a token with a part of a letter is the letter and the number of the part,
 * such as `ש·1/2`.
 * @param {{text: string}[]} tokens
 * @returns {string[]}
 */
export function labelsOf(tokens) {
  const labels = tokens.map(({ text }) => text);
  for (const { first, n, text } of lettersOf(labels)) {
    for (let i = first; n > 1 && i < first + n; i++) if (BYTE.test(labels[i] ?? "")) labels[i] = `${text}·${i - first + 1}/${n}`;
  }
  return labels;
}

/**
 * Return the label of a token that follows other tokens. The label of a token that completes a letter contains the
 * letter, such as `ש·2/2`.
 * @param {{text: string}[]} before
 * @param {string} text
 */
export function labelAfter(before, text) {
  if (!BYTE.test(text)) return text;
  const label = labelsOf([...before.slice(-MOST), { text }]).at(-1) ?? text;
  return /\p{Cn}/u.test(label) ? text : label; // not an assigned character
}

/**
 * Return the text of a token below its letter: whole characters, and the bytes of incomplete characters.
 * @param {string} text
 */
export function partText(text) {
  return text.replaceAll(BYTES, "$1");
}
