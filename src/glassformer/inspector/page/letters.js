/**
 * Letters over tokens. A tokenizer of bytes may cut one letter, such as one of Hebrew, Chinese or an emoji, into several
 * tokens; in readable form these are texts such as `<0xD7>`. The page shows such a letter whole, over its tokens.
 *
 * @typedef {{first: number, n: number, text: string}} Letters what the `n` tokens from `first` on carry together
 */

const BYTE = /<0x([0-9A-F]{2})>/;
const BYTES = new RegExp(BYTE, "g");
/** Largest number of tokens in which the bytes of one character are looked for. */
const MOST = 8;
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** Return the bytes of a readable token. @param {string} text @returns {number[]} */
function bytesOf(text) {
  return text.split(BYTE).flatMap((part, i) => (i % 2 ? [parseInt(part, 16)] : [...new TextEncoder().encode(part)]));
}

/** Return the text of bytes; null if they begin no text, and undefined if their last character is not complete. @param {number[]} bytes */
function textOf(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes), { stream: true });
    return new TextEncoder().encode(text).length === bytes.length ? text : undefined;
  } catch {
    return null;
  }
}

/** Return the tokens from a position on that carry whole characters together; null if the bytes are no text. @param {string[]} texts @param {number} first @returns {Letters | null} */
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
 * Return the letters of tokens, in order. Tokens are together if they carry parts of one character, or characters that are
 * one letter for the reader, such as a base and its accent. Bytes that are no text stay as they are, one token each.
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

/** Join neighbours that share a letter; a line end is alone. @param {Letters[]} stretch @returns {Letters[]} */
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
 * Return the labels of tokens in a picture that has one place per token: a token with a part of a letter is named by the
 * letter and the number of the part, such as `ש·1/2`.
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
 * Return the label of a token that comes after others: one that completes a letter is named by the letter, such as `ש·2/2`.
 * @param {{text: string}[]} before
 * @param {string} text
 */
export function labelAfter(before, text) {
  if (!BYTE.test(text)) return text;
  const label = labelsOf([...before.slice(-MOST), { text }]).at(-1) ?? text;
  return /\p{Cn}/u.test(label) ? text : label; // a number of Unicode that is no letter yet
}

/**
 * Return what a token with a part of a letter shows below the letter: its characters, and the bytes of incomplete ones.
 * @param {string} text
 */
export function partText(text) {
  return text.replaceAll(BYTES, "$1");
}
