/**
 * Shared state of the page. The part that is in the address (`#text=…&panel=…`) restores the same view.
 *
 * @import { Message, Place, Side, State, View } from "./types.js"
 */

import { quoted, visible } from "./text.js";

/** Values that are left out of the address. */
export const DEFAULTS = {
  text: "", ids: "", source: "", target: "", messages: "", panel: "", kind: "", layer: -1, head: -1, pos: -1, temperature: 1,
  top_k: 0, top_p: 1, shown: "matrix", all: 1, badge: "best", colour: "log_prob", card: 0, norm: 1, lens: "top",
  align_layer: -1, align_head: -1, off: "", mean: 0, measure: "", beam: 0, penalty: -1, formula: "", pruned: 1, step: -1, folder: "",
  clean: "", corrupted: "", answer: "", wrong: "", prefix: "", stack: "", checkpoint: "", flow: "", visit: 0, heads: "maps", unit: "",
};

/**
 * Return the address part of a state, such as `panel=lens&pos=4`.
 * @param {View} view
 * @returns {string}
 */
export function encodeHash(view) {
  return Object.keys(DEFAULTS)
    .filter((key) => view[/** @type {keyof View} */ (key)] !== DEFAULTS[/** @type {keyof View} */ (key)])
    .map((key) => `${key}=${encodeURIComponent(String(view[/** @type {keyof View} */ (key)]))}`)
    .join("&");
}

/**
 * Read an address part. Unknown keys and values that are not numbers are ignored.
 * @param {string} hash with or without "#"
 * @returns {View}
 */
export function decodeHash(hash) {
  /** @type {Record<string, string | number>} */
  const view = { ...DEFAULTS };
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [key, encoded] = part.split("=", 2);
    if (!key || encoded === undefined || !Object.hasOwn(DEFAULTS, key)) continue;
    const text = decoded(encoded);
    if (typeof view[key] === "string") view[key] = text;
    else if (text !== "" && Number.isFinite(Number(text))) view[key] = Number(text);
  }
  return /** @type {View} */ (/** @type {unknown} */ (view));
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * Return the messages of a conversation from its JSON; null if it is not a list of messages.
 * @param {string} json
 * @returns {Message[] | null}
 */
export function messagesOf(json) {
  let found;
  try {
    found = JSON.parse(json);
  } catch {
    return null;
  }
  const isMessage = (/** @type {any} */ one) => typeof one?.role === "string" && typeof one?.content === "string";
  return Array.isArray(found) && found.length > 0 && found.every(isMessage) ? found : null;
}

/** State with listeners. Listeners receive the names of the changed keys. */
export class Store {
  /** @param {State} state */
  constructor(state) {
    this.state = state;
    /** @type {((changed: Set<string>) => void)[]} */
    this.listeners = [];
  }

  /**
   * Change some keys and call the listeners if a value differs.
   * @param {Partial<State>} patch
   */
  set(patch) {
    const before = /** @type {Record<string, unknown>} */ (/** @type {unknown} */ (this.state));
    const changed = new Set(Object.entries(patch).filter(([key, value]) => before[key] !== value).map(([key]) => key));
    if (!changed.size) return;
    this.state = { ...this.state, ...patch };
    for (const listener of [...this.listeners]) listener(changed);
  }

  /** @param {(changed: Set<string>) => void} listener */
  subscribe(listener) {
    this.listeners.push(listener);
  }
}

/** Return the tokens that have predictions: the target, or the source of an encoder. @param {State} state */
export const mainTokens = (state) => state.run?.[mainSide(state)] ?? [];

/**
 * Return the tokens before the token that a position predicts. A position of an encoder predicts its own token.
 * @param {State} state
 * @param {number} position
 */
export function tokensBefore(state, position) {
  return mainTokens(state).slice(0, state.run?.target.length ? position + 1 : position);
}

/** Return the side whose positions have predictions. @param {State} state @returns {"source" | "target"} */
export const mainSide = ({ run }) => (run?.target.length ? "target" : "source");

/** Return the tokens that positions count: position i is token i of the main row at the top of the page. @param {State} state */
export const positionTokens = (state) => state.run?.[positionSide(state)] ?? [];

/** Return the side of `positionTokens`. @param {State} state @returns {Side} */
export const positionSide = (state) => (state.run?.written.length ? "written" : mainSide(state));

/**
 * Return the place of a prediction in words: "after" a token of a text, "at" a token of an encoder, or "at" a row of the
 * decoder of a pair, with the target token that this row predicts.
 * @param {State} state
 * @param {number} position
 */
export function positionText(state, position) {
  const token = positionTokens(state)[position];
  if (!state.run || !token) return "";
  if (state.run.written.length) return `at row ${position}: ${quoted(mainTokens(state)[position]?.text ?? "")} predicts ${quoted(token.text)}`;
  return `${state.run.target.length ? "after" : "at"} position ${position}: ${visible(token.text)}`;
}

/**
 * Return the selected position; without a choice, the first mask, the token that a classifier reads, or the last position. Of a
 * pair, it is the last one that does not predict the end.
 * @param {State} state
 */
export function selectedPosition(state) {
  const tokens = mainTokens(state);
  const last = tokens.length - 1;
  if (state.pos >= 0) return Math.min(state.pos, last);
  if (state.model?.pooling === "first") return 0;
  const mask = state.model?.verb === "fill" ? tokens.findIndex((token) => token.text === state.model?.mask) : -1;
  const isEnd = last > 0 && state.model?.end_ids?.includes(state.run?.written[last]?.id ?? -1);
  return mask < 0 ? last - Number(isEnd ?? false) : mask;
}

/**
 * Return the position under the pointer, or the selected one.
 * @param {State} state
 */
export function shownPosition(state) {
  const side = mainSide(state);
  for (const place of [state.hover, state.across]) {
    if (place && isAtPosition(place, side, place.index)) return Math.min(place.index, mainTokens(state).length - 1);
  }
  return selectedPosition(state);
}

/**
 * Return the places that are marked in all panels: those under the pointer, or else those that an answer names.
 * @param {State} state
 * @returns {[Place | null, Place | null]}
 */
export function markedPlaces({ hover, across, lit }) {
  if (hover || across || !lit) return [hover, across];
  return [lit.hover, lit.across];
}

/** Return the places of an answer if they are the marked ones. @param {State} state */
export const answeredPlaces = ({ hover, across, lit }) => (hover || across ? null : lit);

/**
 * Return true if a place is a position of a side. A written token has the position of the target token that predicts
 * it.
 * @param {Place | null} place
 * @param {string} side
 * @param {number} index
 */
export function isAtPosition(place, side, index) {
  if (!place || place.index !== index) return false;
  return place.side === side || (place.side !== "source" && side !== "source");
}
