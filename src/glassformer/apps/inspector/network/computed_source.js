/**
 * Source that answers the routes of the server with a network in this browser.
 *
 * @import { Bytes } from "../page/source.js"
 * @import { Facts } from "./computed_run.js"
 * @import { Request } from "./patching.js"
 * @import { Input, Rules } from "./reading.js"
 * @import { RecurrentConfig } from "./recurrent.js"
 * @import { Active } from "./strongest.js"
 * @import { Vocabulary } from "./tokenizer.js"
 * @import { TransformerConfig } from "./transformer.js"
 *
 * @typedef {{
 *   facts: Facts, config: TransformerConfig | RecurrentConfig, tied: Record<string, string>, rules: Rules,
 *   vocabularies: {target: Vocabulary, source: Vocabulary | null}, random: {ids: number[], source_ids: number[]} | null,
 *   check: {ids: number[], source_ids: number[], logits: number[]},
 * }} WebModel
 * Contents of the file other than the weights. `check` has random ids and their last logits in PyTorch.
 */

import { ServerError, Source, pause } from "../page/source.js";
import { ablate, effects, measured, without } from "./ablation.js";
import { attribution, directEffect } from "./attribution.js";
import { ComputedRun } from "./computed_run.js";
import { thumbnails } from "./head_scores.js";
import { entropyOf, largest, logSoftmax, logitsAt, topOf } from "./heads.js";
import { inputEffects } from "./input_effects.js";
import { patch } from "./patching.js";
import { Prefix, Reading } from "./reading.js";
import { RecurrentModel } from "./recurrent.js";
import { activeUnits, movedTokens, strongestTexts } from "./strongest.js";
import { range, rowsOf } from "./tensors.js";
import { TextError } from "./tokenizer.js";
import { Transformer } from "./transformer.js";
import { Weights, readTensors } from "./weights.js";

/** Number of parameters above which a network pauses between two blocks, so that the page stays responsive. */
const LARGE = 10e6;

/**
 * Build a network from its settings and a safetensors file.
 * @param {TransformerConfig | RecurrentConfig} config
 * @param {Record<string, string>} tied other names of tied weights
 * @param {Uint8Array<ArrayBuffer>} bytes
 */
export function buildNetwork(config, tied, bytes) {
  const tensors = readTensors(bytes);
  const size = [...tensors.values()].reduce((sum, { data }) => sum + data.length, 0);
  const pauseBetween = async () => void (size > LARGE && await pause(0));
  const weights = new Weights(tensors, tied);
  if (config.kind === "recurrent") return new RecurrentModel(/** @type {RecurrentConfig} */ (config), weights, pauseBetween);
  return new Transformer(/** @type {TransformerConfig} */ (config), weights, pauseBetween);
}

/** Routes that this source can answer. The page leaves out panels that need another route. */
const ROUTES = ["/flow", "/thumbnails", "/attention", "/scores", "/alignment", "/lens", "/attribution", "/inputs", "/logits", "/effects", "/tensor", "/api/run", "/api/next", "/api/model", "/api/vocabulary", "/api/patch", "/api/effects", "/api/strongest"];
/** Largest number of runs that are kept. Fewer are kept if their tensors have more than `MAX_NUMBERS` values (256 MB). */
const MAX_RUNS = 8;
const MAX_NUMBERS = 64e6;
const N_NEXT = 50;
/** Largest difference from PyTorch's logits, relative to max(1, largest logit). */
const TOLERANCE = 1e-3;

/**
 * Compress values in the format of the server.
 * @param {Float32Array<ArrayBuffer>} values
 */
async function packed(values) {
  const stream = new Blob([values]).stream().pipeThrough(new CompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  return { shape: String(values.length), zlib: btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")) };
}

/** Source whose answers are computed in the browser. */
export class ComputedSource extends Source {
  /** @param {WebModel} web @param {Uint8Array<ArrayBuffer>} weights */
  constructor(web, weights) {
    super();
    this.web = web;
    this.network = buildNetwork(web.config, web.tied, weights);
    this.reading = new Reading(web.rules, web.vocabularies);
    this.prefix = new Prefix(this.network);
    const { tokens } = this.reading.tokenizer;
    /** Names of all rows of the output head, by id. A padded vocabulary has rows without a token. */
    this.vocabulary = range(0, web.config.vocab_size).map((id) => (id < tokens.length ? this.reading.tokenizer.shown(id) : `<row ${id}>`));
    /** @type {Promise<void> | null} */
    this.checked = null;
    /** @type {Map<string, ComputedRun>} */
    this.runs = new Map();
    this.nRuns = 0;
    /** Progress in the latest set of texts. */
    this.progress = { done: 0, total: 0 };
    /** Activities of the units in the latest set of texts. @type {{key: string, texts: Active[]} | null} */
    this.active = null;
  }

  /** The settings, for the routes that need a Transformer. */
  get transformer() {
    return /** @type {TransformerConfig} */ (this.web.config);
  }

  /** @override */
  get hasGradients() {
    return false;
  }

  /** @override @param {string} route */
  answers(route) {
    return ROUTES.includes(route);
  }

  /** Check that this browser computes the logits of PyTorch; throw an error otherwise. */
  async check() {
    const { ids, source_ids, logits: expected } = this.web.check;
    const { logits } = await this.network.step(ids, /** @type {any} */ (await this.network.start(source_ids)));
    const found = logitsAt(logits, rowsOf(logits) - 1);
    const largest = Math.max(1, ...expected.map(Math.abs));
    if (expected.some((x, i) => !(Math.abs(x - found[i]) <= TOLERANCE * largest))) {
      throw new ServerError("The results of this browser differ from those of PyTorch: use another browser.", 0);
    }
  }

  /** @override @param {string} path @returns {Promise<any>} */
  async get(path) {
    const [route = "", query = ""] = path.split("?");
    const { model } = this.web.facts;
    const given = new URLSearchParams(query);
    await (this.checked ??= this.check());
    if (route === "/api/session") return { model: model.id, folder: "", gallery: null };
    if (route === "/api/model") return this.#named(given.get("model"), model);
    if (route === "/api/progress") return this.progress;
    if (route === "/api/vocabulary") return { model: model.id, tokens: this.vocabulary };
    const { run, what } = this.#runOf(route);
    if (what === "flow") return run.flow(this.web.config);
    if (what === "scores") return run.scores();
    if (what === "lens") return run.lens(given.get("norm") !== "0");
    const asked = { position: number(given, "position"), token: given.get("token") ?? "", against: given.get("against") ?? "" };
    if (what === "attribution") return attribution(run, this.transformer, asked);
    if (what === "inputs") return inputEffects(run, asked, (done, total) => { this.progress = { done, total }; });
    if (what === "effects") return { ...run.names, ...effects([await measured(run, this.transformer, given.get("mean") === "1")], model.attention, this.transformer) };
    if (what === "alignment") return run.alignment(number(given, "layer"), number(given, "head"));
    throw this.#refused();
  }

  /** @override @param {string} path @returns {Promise<Bytes>} */
  async bytes(path) {
    const [route = "", query = ""] = path.split("?");
    const given = new URLSearchParams(query);
    const { run, what } = this.#runOf(route);
    if (what === "thumbnails") return this.#thumbnails(run, given.get("kind") ?? "");
    if (what === "attention") {
      const weights = run.weights(given.get("kind") ?? "", number(given, "layer") ?? 0);
      const [, heads, rows, columns] = weights.shape;
      const head = number(given, "head");
      const part = weights.data.subarray((head ?? 0) * rows * columns, ((head ?? heads - 1) + 1) * rows * columns);
      return { shape: [head === null ? heads : 1, rows, columns], buffer: Uint16Array.from(part, (x) => Math.round(x * 65535)).buffer };
    }
    if (what === "logits") {
      const off = given.get("off") ?? "";
      const shown = off ? await without(run, this.transformer, { off, mean: given.get("mean") === "1" }) : run;
      const logits = shown.logits(number(given, "position") ?? 0);
      return { shape: [logits.length], buffer: /** @type {ArrayBuffer} */ (logits.buffer) };
    }
    if (what === "tensor") {
      const rows = { first: number(given, "first") ?? 0, count: number(given, "count") ?? Infinity };
      const { shape, data } = run.part(given.get("name") ?? "", number(given, "head"), rows);
      return { shape, buffer: /** @type {ArrayBuffer} */ (data.buffer) };
    }
    throw this.#refused();
  }

  /** @override @param {string} path @param {{[name: string]: any}} body @returns {Promise<any>} */
  async post(path, body) {
    if (path === "/api/run") return this.#run(body);
    if (path === "/api/effects") return this.#effectsOfSet(body.lines, body.mean);
    if (path === "/api/strongest") return this.#strongest(body.lines, body.units, body.unit);
    if (path === "/api/patch") return this.#patch(/** @type {any} */ (body));
    if (path === "/api/next") return this.#next(body.ids, body.source_ids ?? []);
    const { run, what } = this.#runOf(path);
    if (what === "ablate") return ablate(run, this.transformer, { off: body.off, mean: body.mean });
    throw this.#refused();
  }

  /** @param {{[name: string]: any}} body */
  async #run(body) {
    const begin = performance.now();
    const { random } = this.web;
    if (body.random && !random) throw this.#refused();
    const input = body.random && random ? { ids: random.ids, sourceIds: random.source_ids, note: "" } : await this.reading.input(body, this.network);
    const run = this.#newRun(String(++this.nRuns), input);
    await run.compute();
    this.runs.set(run.names.run, run);
    let numbers = 0;
    for (const [i, [name, { size }]] of [...this.runs].reverse().entries()) {
      numbers += size;
      if (i && (i >= MAX_RUNS || numbers > MAX_NUMBERS)) this.runs.delete(name);
    }
    return run.answer(this.reading.unknown([body.source], [body.text, body.target, body.messages?.map(contentOf).join("\n")]), (performance.now() - begin) / 1000);
  }

  /** @param {string} name @param {Input} input */
  #newRun(name, input) {
    return new ComputedRun(name, this.web.facts, this.reading, this.network, input, this.vocabulary);
  }

  /** @param {Request} request */
  async #patch(request) {
    this.progress = { done: 0, total: 0 };
    const found = await patch({
      network: /** @type {Transformer} */ (this.network), reading: this.reading, newRun: (input) => this.#newRun("", input),
      report: (done, total) => { this.progress = { done, total }; },
    }, request);
    return { model: this.web.facts.model.id, ...found };
  }

  /**
   * Run each text of a set, and call `use` with the run.
   * @template T
   * @param {string[]} lines
   * @param {(run: ComputedRun, number: number) => Promise<T> | T} use
   * @returns {Promise<T[]>}
   */
  async #ofTexts(lines, use) {
    if (!lines.length) throw new TextError("there is no text: write one per line");
    const found = [];
    for (const [number, line] of lines.entries()) {
      this.progress = { done: number, total: lines.length };
      try {
        const run = this.#newRun("", await this.reading.lineInput(line, this.network));
        await run.compute();
        found.push(await use(run, number));
      } catch (error) {
        throw error instanceof TextError ? new TextError(`text ${number + 1}: ${error.message}`) : error;
      }
    }
    return found;
  }

  /** @param {string[]} lines @param {boolean} mean */
  async #effectsOfSet(lines, mean) {
    const { id, attention } = this.web.facts.model;
    const texts = await this.#ofTexts(lines, (run) => measured(run, this.transformer, mean));
    return { model: id, ...effects(texts, attention, this.transformer) };
  }

  /** @param {string[]} lines @param {string} units @param {number} unit */
  async #strongest(lines, units, unit) {
    const key = JSON.stringify([lines, units]);
    if (this.active?.key !== key) {
      const texts = await this.#ofTexts(lines, (run, number) => activeUnits(run, number, units));
      this.active = { key, texts: texts.filter((text) => text !== null) };
    }
    const { model } = this.web.facts;
    const found = strongestTexts(this.active.texts, units, unit);
    const [name, stack] = [`${units}.${unit}`, this.transformer.decoder ? "decoder" : "encoder"];
    const reason = !model.is_additive ? "this model has no logits of tokens that are a sum over its parts"
      : stack === "decoder" && name.startsWith("encoder") ? `${name} writes to the encoder, and the head of the model reads the decoder only` : "";
    if (reason) return { model: model.id, ...found, raised: [], lowered: [], reason };
    const effects = await this.#ofTexts(found.texts.map((text) => lines[text.number]), (run, i) =>
      directEffect(run, this.transformer, name, largest(Float64Array.from(found.texts[i].activity, (x) => x ?? -Infinity), 1)[0]));
    return { model: model.id, ...found, ...movedTokens(effects, this.vocabulary, this.reading.rules.never) };
  }

  /** @param {number[]} ids @param {number[]} sourceIds */
  async #next(ids, sourceIds) {
    const all = await this.prefix.logits(ids, sourceIds);
    const own = logSoftmax(all);
    const logits = this.reading.allowed(all);
    const logProbs = logSoftmax(logits);
    return {
      model: this.web.facts.model.id, top: topOf(logProbs, this.vocabulary, N_NEXT), entropy: entropyOf(logProbs), never: this.reading.rules.never.reduce((sum, id) => sum + Math.exp(own[id] ?? -Infinity), 0), text: this.reading.tokenizer.decode(ids),
      logits: await packed(/** @type {Float32Array<ArrayBuffer>} */ (logits)),
    };
  }

  /** @param {ComputedRun} run @param {string} kind @returns {Bytes} */
  #thumbnails(run, kind) {
    const layers = range(0, this.web.facts.model.attention[kind]?.layers ?? 0).map((layer) => thumbnails(run.weights(kind, layer)));
    return { shape: [layers.length, ...(layers[0]?.shape ?? [])], buffer: Uint8Array.from(layers.flatMap(({ data }) => Array.from(data))).buffer };
  }

  /** @param {string} route @returns {{run: ComputedRun, what: string}} */
  #runOf(route) {
    const [, name = "", what = ""] = /^\/api\/run\/([^/]+)\/(.+)$/.exec(route) ?? [];
    const run = this.runs.get(name);
    if (what && !run) throw new TextError("the run is no longer kept: run the text again");
    if (!run) throw this.#refused();
    return { run, what };
  }

  /** @template T @param {string | null} wanted @param {T & {id: string}} model @returns {T} */
  #named(wanted, model) {
    if (wanted === null || wanted === model.id) return model;
    throw new TextError(`this file has another model than ${wanted}`);
  }

  #refused() {
    return new TextError('This file does not compute this: start "glassformer inspect DIR".');
  }
}

/** @param {{content: string}} message */
const contentOf = ({ content }) => content;

/** Return the integer of a query parameter; null without the parameter. @param {URLSearchParams} given @param {string} name */
function number(given, name) {
  const value = given.get(name);
  return value === null ? null : Number(value);
}
