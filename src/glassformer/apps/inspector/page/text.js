/**
 * Format texts and numbers (visible spaces, few digits), and parts of sentences about tokens and parts of a model.
 *
 * @import { Token } from "./types.js"
 */

const MARKS = /** @type {Record<string, string>} */ ({ " ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍" });

/** Invisible characters, except the joiner between the parts of one emoji. */
const UNSEEN = /[\u0000-\u0020\u007f\u00a0\u200b\u200c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]|(?<!\p{Extended_Pictographic}[\ufe0f\u{1f3fb}-\u{1f3ff}]?)\u200d|\u200d(?!\p{Extended_Pictographic})/gu;

/**
 * Return a text with marks in place of spaces, line ends and control characters.
 * @param {string} text
 */
export function visible(text) {
  if (text === "") return "∅";
  return text.replace(UNSEEN, (character) => {
    const code = character.charCodeAt(0);
    const other = code < 0x20 ? String.fromCharCode(0x2400 + code) : `‹${code.toString(16).padStart(4, "0").toUpperCase()}›`;
    return MARKS[character] ?? other;
  });
}

/**
 * Return a visible text of at most `length` characters.
 * @param {string} text
 * @param {number} [length]
 */
export function shortened(text, length = 12) {
  const characters = [...visible(text)];
  return characters.length <= length ? characters.join("") : `${characters.slice(0, length - 1).join("")}…`;
}

/**
 * Return a number with a fixed number of digits after the point; a minus sign instead of a hyphen.
 * @param {number | null | undefined} value
 * @param {number} [digits]
 */
export function fixed(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}

/**
 * Return a number with its sign.
 * @param {number | null | undefined} value
 * @param {number} [digits]
 */
export function signed(value, digits = 3) {
  const text = fixed(value, digits);
  return value !== null && value !== undefined && value > 0 && Number(text) !== 0 ? `+${text}` : text;
}

/** Return a probability in percent. @param {number} value */
export const percent = (value) => (value > 0 && value < 0.0005 ? "<0.1 %" : `${(100 * value).toFixed(1)} %`);

/**
 * Return a count with separators of thousands, or in millions and billions.
 * @param {number} value
 */
export function count(value) {
  if (value >= 1e9) return `${(value / 1e9).toFixed(2)} billion`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} million`;
  return value.toLocaleString("en-US");
}

/**
 * Return a number with about four significant digits, for axes and curves.
 * @param {number} value
 */
export function compact(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e9) return value.toExponential(2).replace("e+", "e");
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3).replace(/\.?0+$/, "")}M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3).replace(/\.?0+$/, "")}k`;
  if (size < 1e-3) return value.toExponential(1).replaceAll("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/**
 * Return a duration such as 3 min 20 s.
 * @param {number} seconds
 */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

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
 * @param {string} name such as `decoder.0.head.3`, `decoder.0.feed_forward`, `decoder.0` or `embedding`
 */
export function partWords(name) {
  const [kind = "", layer, what, head] = name.split(".");
  if (layer === undefined) return `the ${kind.replace("_", " ")}`;
  const part = what === "head" ? `head ${head} of ` : what === "feed_forward" ? "the feed-forward of " : what ? "the bias of attention of " : "";
  return `${part}layer ${layer} (${kind})`;
}
