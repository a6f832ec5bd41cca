/**
 * Access of the panels to the shared state, the data of a run, and the status line.
 *
 * @import { AttentionPlace, Example, Model, Place, Run, State } from "./types.js"
 * @import { Bytes, Source } from "./source.js"
 * @import { Store } from "./state.js"
 */

import { button, choice, fill, h } from "./dom.js";
import { pause, weights16, withQuery } from "./source.js";
import { labelsOf } from "./letters.js";
import { markedPlaces } from "./state.js";

/**
 * @typedef {{
 *   store: Store, source: Source, data: RunData, fail: (error: unknown) => void, say: (text: string) => void,
 *   submit: () => void, submitRandom: () => void, use: (example: Example) => Promise<void>,
 * }} App
 * `use` writes an input into the boxes and runs it.
 *
 * @typedef {{element: HTMLElement, render: (changed: Set<string>) => void}} Panel
 *
 * @typedef {{
 *   id: string, title: string, create: (app: App) => Panel, exists: (model: Model) => boolean, route?: string, needs_no_run?: boolean,
 * }} Tab
 * A panel with a tab. It needs a route whose path contains `route`. `needs_no_run` is true if it can be shown before a run.
 */

const MAX_BYTES = 300e6;
/** A layer with more bytes than this is requested head by head. */
const MAX_LAYER = 8e6;

/** Cache of the data of runs. The least recently used entries are dropped above `MAX_BYTES`. */
export class RunData {
  /** @param {Source} source */
  constructor(source) {
    this.source = source;
    /** @type {Map<string, {value: Promise<any>, bytes: number}>} */
    this.entries = new Map();
  }

  clear() {
    this.entries.clear();
  }

  /**
   * @template T
   * @param {string} key
   * @param {() => Promise<T>} load
   * @param {(value: T) => number} [size]
   * @returns {Promise<T>}
   */
  once(key, load, size = () => 1000) {
    const known = this.entries.get(key);
    if (known) {
      this.entries.delete(key);
      this.entries.set(key, known);
      return known.value;
    }
    const entry = { value: load(), bytes: 0 };
    this.entries.set(key, entry);
    entry.value.then((value) => {
      entry.bytes = size(value);
      this.#shrink();
    }, () => this.entries.delete(key));
    return entry.value;
  }

  #shrink() {
    let total = 0;
    for (const { bytes } of this.entries.values()) total += bytes;
    for (const [key, { bytes }] of this.entries) {
      if (total < MAX_BYTES || this.entries.size < 3) return;
      this.entries.delete(key);
      total -= bytes;
    }
  }

  /** @param {Run} run @param {string} what @param {Record<string, string | number | undefined>} [query] @returns {Promise<any>} */
  json(run, what, query = {}) {
    const path = withQuery(`/api/run/${run.run}/${what}`, query);
    return this.once(path, () => this.source.get(path, run.model), (value) => JSON.stringify(value).length);
  }

  /** @param {Run} run @param {string} what @param {Record<string, string | number | undefined>} query @returns {Promise<Bytes>} */
  bytes(run, what, query) {
    const path = withQuery(`/api/run/${run.run}/${what}`, query);
    return this.once(path, () => this.source.bytes(path, run.model), ({ buffer }) => buffer.byteLength);
  }

  /** Return the answer to a body; equal bodies have equal answers. @param {string} path @param {{model?: string, [name: string]: unknown}} body */
  post(path, body) {
    return this.once(`${path} ${JSON.stringify(body)}`, () => this.source.post(path, body));
  }

  /**
   * Return the attention weights of one head. A small layer is loaded as a whole, so that its other heads open without
   * a request.
   * @param {Run} run
   * @param {string} kind
   * @param {number} layer
   * @param {number} head
   * @returns {Promise<{rows: number, columns: number, values: Float32Array}>}
   */
  async head(run, kind, layer, head) {
    const place = /** @type {AttentionPlace} */ (run.attention[kind]);
    const isLarge = 2 * place.heads * run[place.rows].length * run[place.columns].length > MAX_LAYER;
    const { shape, buffer } = await this.bytes(run, "attention", isLarge ? { kind, layer, head } : { kind, layer });
    const [, rows = 0, columns = 0] = shape;
    return { rows, columns, values: weights16(buffer, isLarge ? 0 : head * rows * columns, rows * columns) };
  }

  /** @param {string} model @returns {Promise<string[]>} */
  async vocabulary(model) {
    const path = withQuery("/api/vocabulary", { model });
    return (await this.once(path, () => this.source.get(path, model))).tokens;
  }
}

/** Largest number of floating-point operations of work that begins without a click: about a second on two cores. */
const MAX_OPERATIONS = 2e10;

/**
 * Return true if a panel may run the model by itself: the page has a server, and the runs take about a second.
 * @param {App} app
 * @param {number} nRuns
 * @param {number} nTokens of each run
 */
export function isQuick({ source, store: { state } }, nRuns, nTokens) {
  return source.answers("/api/stop") && 2 * (state.model?.parameters ?? Infinity) * nRuns * nTokens < MAX_OPERATIONS;
}

/** Return true if a panel may switch off each part of the model by itself. @param {App} app */
export function isQuickToSwitch(app) {
  const { model, run } = app.store.state;
  const nParts = Object.values(model?.attention ?? {}).reduce((sum, { layers, heads }) => sum + layers * (heads + 2), 0);
  return isQuick(app, nParts, (run?.source.length ?? 0) + (run?.target.length ?? 0));
}

/** The latest result of asynchronous requests: a later request replaces an earlier one. Meanwhile, the previous result is dimmed. */
export class Latest {
  /** @param {Pick<App, "say" | "fail">} app @param {HTMLElement} element is marked as busy during a request */
  constructor(app, element) {
    this.app = app;
    this.element = element;
    this.number = 0;
    this.hasFailed = false;
  }

  /**
   * Wait for a value and use it, unless another request came meanwhile.
   * @template T
   * @param {Promise<T>} promise
   * @param {(value: T) => void} use
   */
  async use(promise, use) {
    const number = ++this.number;
    this.element.setAttribute("aria-busy", "true");
    this.element.classList.add("is-former");
    try {
      const value = await promise;
      if (number !== this.number) return;
      if (this.hasFailed) this.app.say("");
      this.hasFailed = false;
      this.element.classList.remove("is-former");
      use(value);
    } catch (error) {
      if (number !== this.number) return;
      this.hasFailed = true;
      this.app.fail(error);
    } finally {
      if (number === this.number) this.element.removeAttribute("aria-busy");
    }
  }

  /** Drop the result of the request in progress. */
  cancel() {
    this.number++;
    this.element.removeAttribute("aria-busy");
    this.element.classList.remove("is-former");
  }
}

/** Time between two questions for the progress of a long request. */
const POLL_MS = 500;

/**
 * Show during a long request how many of its runs are done and the time left, with a button that stops it.
 * @template T
 * @param {App} app
 * @param {Promise<T>} request
 * @param {HTMLElement} place
 * @returns {Promise<T>}
 */
export async function withProgress(app, request, place) {
  let isDone = false;
  const begun = Date.now();
  const stop = app.source.answers("/api/stop") ? button("stop", () => void app.source.post("/api/stop", {}).catch(app.fail), { class: "quiet" }) : null;
  const count = h("span");
  const finished = request.finally(() => {
    isDone = true;
    place.textContent = "";
  });
  void (async () => {
    for (await pause(POLL_MS); !isDone; await pause(POLL_MS)) {
      const { done, total } = await app.source.get("/api/progress").catch(() => ({ done: 0, total: 0 }));
      const left = done ? `, about ${Math.ceil(((Date.now() - begun) / 1000 / done) * (total - done))} s left` : "";
      if (!isDone && done < total && !place.contains(count)) fill(place, count, " ", stop);
      if (!isDone && done < total) count.textContent = `${done} of ${total}${left}`;
    }
  })();
  return finished;
}

/** Return the kinds of attention of a run. @param {State} state */
export const kindsOf = ({ run }) => Object.keys(run?.attention ?? {});

/**
 * Create the choice of the kind of attention, which is hidden if there is only one. `write` shows the choice of the state.
 * @param {Store} store
 * @param {(kind: string) => string} [nameOf]
 */
export function kindChoice(store, nameOf = String) {
  const { element, setOptions, write } = choice("Kind of attention", [], (kind) => store.set({ kind, layer: -1, head: -1 }));
  return { element, write: () => {
    const kinds = kindsOf(store.state);
    setOptions(kinds.map((kind) => [kind, nameOf(kind)]));
    element.hidden = kinds.length < 2;
    write(chosenKind(store.state) ?? "");
  } };
}

/**
 * Return the chosen kind of attention. The default is cross-attention, or else the decoder's, or else the first kind.
 * @param {State} state
 * @returns {string | null}
 */
export function chosenKind(state) {
  const kinds = kindsOf(state);
  if (kinds.includes(state.kind)) return state.kind;
  return ["cross", "decoder"].find((kind) => kinds.includes(kind)) ?? kinds[0] ?? null;
}

/**
 * Return the texts of the tokens in the rows and the columns of an attention matrix.
 * @param {Run} run
 * @param {AttentionPlace} place
 */
export function attentionLabels(run, place) {
  const first = place.first_row ?? 0;
  return {
    rows: labelsOf(run[place.rows]).slice(first),
    columns: labelsOf(run[place.columns]),
  };
}

/** @typedef {Pick<AttentionPlace, "rows" | "columns" | "first_row">} Axes of a matrix */

/** Return the row and the column of the tokens under the pointer; -1 without one. @param {State} state @param {Axes} where */
export function markedCell(state, where) {
  const find = (/** @type {(Place | null)[]} */ places, /** @type {string} */ side) =>
    places.find((place) => place && (place.side === "source") === (side === "source"))?.index ?? -1;
  const [hover, across] = markedPlaces(state);
  const row = find([hover, across], where.rows);
  return { row: row < 0 ? -1 : row - (where.first_row ?? 0), column: find([across, hover], where.columns) };
}

/**
 * Return the places of the query and the key of a cell of an attention matrix.
 * @param {Axes} where
 * @param {number} row
 * @param {number} column
 */
export function cellPlaces(where, row, column) {
  return {
    hover: { side: where.rows, index: row + (where.first_row ?? 0) },
    across: { side: where.columns, index: column },
  };
}
