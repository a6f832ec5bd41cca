/**
 * Visual order of tokens in left-to-right and right-to-left text: the Unicode bidirectional algorithm (annex 9), with a
 * token as the smallest unit.
 *
 * @typedef {"ltr" | "rtl"} Direction
 */

const RIGHT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Samaritan}\p{Script=Mandaic}\p{Script=Adlam}]/u;

/**
 * Return the direction of the first letter or digit of a text; null without one. A digit is written from left to right.
 * @param {string} text
 * @returns {Direction | null}
 */
export function directionOf(text) {
  const [first = ""] = /[\p{L}\p{Nd}]/u.exec(text) ?? [];
  if (first === "") return null;
  return /\p{L}/u.test(first) && RIGHT.test(first) ? "rtl" : "ltr";
}

/**
 * Return the direction of a whole text: that of its first letter. Without a letter, it is left to right.
 * @param {string} text
 * @returns {Direction}
 */
export function directionOfText(text) {
  const [first = ""] = /\p{L}/u.exec(text) ?? [];
  return directionOf(first) ?? "ltr";
}

/**
 * Group tokens into runs of one direction. A token without a direction has that of both neighbours if they agree, and
 * otherwise that of the text.
 * @param {(Direction | null)[]} directions of the tokens
 * @param {Direction} whole direction of the text
 * @returns {{direction: Direction, from: number, to: number}[]}
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
 * @returns {number[]}
 */
export function visualOrder(texts) {
  const whole = directionOfText(texts.join(""));
  const runs = runsOf(texts.map(directionOf), whole);
  if (whole === "rtl") runs.reverse();
  return runs.flatMap(({ direction, from, to }) => {
    const numbers = Array.from({ length: to - from }, (_, i) => from + i);
    return direction === "rtl" ? numbers.reverse() : numbers;
  });
}
