/**
 * Letters of several tokens, and the visual order of tokens.
 *
 * A byte-level tokenizer may split one letter (of Hebrew or Chinese, or an emoji) into several tokens, whose readable form is
 * a text such as `<0xD7>`. The page shows the whole letter above its tokens. The order in left-to-right and right-to-left text
 * is that of the Unicode bidirectional algorithm (annex 9), with a token as the smallest unit.
 *
 * @typedef {{first: number, n: number, text: string}} Letters the text of the `n` tokens from `first` on
 *
 * @typedef {"ltr" | "rtl"} Direction
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

/** Return the text of a token below its letter: whole characters, and the bytes of incomplete characters. @param {string} text */
export const partText = (text) => text.replaceAll(BYTES, "$1");

const RIGHT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Samaritan}\p{Script=Mandaic}\p{Script=Adlam}]/u;

/** Return the direction of the first letter or digit of a text; null without one. A digit is written from left to right. @param {string} text */
export function directionOf(text) {
  const [first] = /[\p{L}\p{Nd}]/u.exec(text) ?? [];
  return first === undefined ? null : /\p{L}/u.test(first) && RIGHT.test(first) ? "rtl" : "ltr";
}

/** Return the direction of a whole text: that of its first letter. Without a letter, it is left to right. @param {string} text */
export const directionOfText = (text) => directionOf(/\p{L}/u.exec(text)?.[0] ?? "") ?? "ltr";

/**
 * Group tokens into runs of one direction. A token without a direction has that of both neighbours if they agree, and
 * otherwise that of the text.
 * @param {(Direction | null)[]} directions of the tokens
 * @param {Direction} whole direction of the text
 */
export function runsOf(directions, whole) {
  /** @type {{direction: Direction, from: number, to: number}[]} */
  const runs = [];
  const after = [...directions, whole];
  for (let i = directions.length; i--;) after[i] ??= after[i + 1] ?? whole;
  let before = whole;
  for (const [i, own] of directions.entries()) {
    before = own ?? before;
    const direction = before === after[i] ? before : whole;
    const last = runs.at(-1);
    if (last?.direction === direction) last.to = i + 1;
    else runs.push({ direction, from: i, to: i + 1 });
  }
  return runs;
}

/**
 * Return the indices of the tokens of a line in visual order, from left to right.
 * @param {string[]} texts
 */
export function visualOrder(texts) {
  const whole = directionOfText(texts.join(""));
  const runs = runsOf(texts.map(directionOf), whole);
  if (whole === "rtl") runs.reverse();
  return runs.flatMap(({ direction, from, to }) => Array.from({ length: to - from }, (_, i) => (direction === "rtl" ? to - 1 - i : from + i)));
}
