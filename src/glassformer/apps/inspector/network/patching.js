/**
 * Activation patching: copy one activation at a time from a clean run into a corrupted run. Same rules as
 * `inspection/patching.py`. The estimate by the gradient is left out, because these networks compute no gradients.
 *
 * @import { ComputedRun } from "./computed_run.js"
 * @import { Input, Reading } from "./reading.js"
 * @import { Tensor } from "./tensors.js"
 * @import { Transformer } from "./transformer.js"
 * @import { Patching } from "../panels/patch.js"
 *
 * @typedef {{clean: string, corrupted: string, answer?: string | null, wrong?: string | null, target?: string | null}} Texts
 * @typedef {Texts & {parts: "positions" | "heads", stack?: "encoder" | "decoder", more_clean: string[], more_corrupted: string[]}} Request
 *
 * @typedef {{clean: ComputedRun, corrupted: ComputedRun, position: number, answer: number, wrong: number, note: string}} Pair
 * Two runs with inputs of equal shape, and the tokens that they predict at a position.
 *
 * @typedef {{
 *   network: Transformer, reading: Reading, newRun: (input: Input) => ComputedRun, report: (done: number, total: number) => void,
 * }} Tools
 */

import { largest } from "./heads.js";
import { besideOthers, meanOf } from "./spread.js";
import { range } from "./tensors.js";
import { TextError } from "./tokenizer.js";

/**
 * Return the share of the logit difference that each patch restores: means over the pairs of a request.
 * @param {Tools} tools
 * @param {Request} request
 * @returns {Promise<Omit<Patching, "model">>}
 */
export async function patch(tools, { parts, stack, more_clean, more_corrupted, ...texts }) {
  const { network, reading, report } = tools;
  if (more_clean.length !== more_corrupted.length) {
    throw new TextError(`there are ${more_clean.length} more clean texts and ${more_corrupted.length} corrupted ones: give pairs`);
  }
  const chosen = network[stack ?? network.headStack.name] ?? network.headStack;
  const places = parts === "heads" ? chosen.contexts() : chosen.residuals();
  const total = 1 + more_clean.length;
  const first = await pairOf(tools, texts);
  const ofPairs = [await sharesOf(first, places)];
  let columns = columnsOf(first, parts, chosen.name);
  for (const [i, clean] of more_clean.entries()) {
    report(i + 1, total);
    const pair = await pairOfLines(tools, i + 2, clean, more_corrupted[i]);
    ofPairs.push(await sharesOf(pair, places));
    if (columnsOf(pair, parts, chosen.name).join("\n") !== columns.join("\n")) columns = columns.map((_, place) => String(place));
  }
  if (ofPairs.some(({ rows }) => rows[0].length !== columns.length)) {
    throw new TextError("the pairs have different numbers of tokens: choose heads, or pairs of one length");
  }
  const { clean, corrupted } = first;
  const cells = places.map((_, row) => columns.map((_name, column) => ofPairs.map(({ rows }) => rows[row][column])));
  const compared = Object.values(besideOthers(Object.fromEntries(cells.flat().entries()))); // in the order of the cells
  const beside = cells.map((row, i) => compared.slice(i * row.length, (i + 1) * row.length));
  return {
    unknown: [reading.unknown([texts.clean, texts.corrupted], [texts.answer, texts.wrong, texts.target]), first.note].filter(Boolean).join(" "),
    stack: chosen.name, parts, n_texts: total, tokens_clean: clean.namesOf(chosen.name), tokens_corrupted: corrupted.namesOf(chosen.name),
    columns, target: reading.rules.is_pair ? clean.namesOf("decoder") : null, layers: places.map(([name]) => name),
    map: beside.map((row) => row.map(({ mean }) => mean)), estimate: null, correlation: null, beside,
    clean: meanOf(ofPairs.map((one) => one.clean)), corrupted: meanOf(ofPairs.map((one) => one.corrupted)),
    answer: reading.tokenizer.shown(first.answer), wrong: reading.tokenizer.shown(first.wrong),
  };
}

/** Return the names of the columns of a pair: tokens, or `clean/corrupted` where the runs differ, or heads. @param {Pair} pair @param {string} parts @param {string} stack */
function columnsOf({ clean, corrupted }, parts, stack) {
  if (parts === "heads") return range(0, clean.facts.model.attention[stack]?.heads ?? 0).map((head) => `head ${head}`);
  const others = corrupted.namesOf(stack);
  return clean.namesOf(stack).map((name, i) => (name === others[i] ? name : `${name}/${others[i]}`));
}

/** Return the pair of two lines. An answer may follow its text after a tab. @param {Tools} tools @param {number} number @param {string} cleanLine @param {string} corruptedLine */
async function pairOfLines(tools, number, cleanLine, corruptedLine) {
  const [[clean, answer], [corrupted, wrong]] = [cleanLine, corruptedLine].map((line) => line.split("\t"));
  try {
    return await pairOf(tools, { clean, corrupted, answer, wrong });
  } catch (error) {
    if (!(error instanceof TextError)) throw error;
    throw new TextError(`pair ${number}: ${error.message}`);
  }
}

/** Return the two runs of two texts, or of two sources with one target prefix; see `patching_of`. @param {Tools} tools @param {Texts} texts @returns {Promise<Pair>} */
async function pairOf({ network, reading, newRun }, { clean, corrupted, answer, wrong, target }) {
  const { is_pair: isPair, end_id: end } = reading.rules;
  /** @type {Input[]} */
  const inputs = [];
  for (const text of [clean, corrupted]) inputs.push(await reading.input(isPair ? { source: text, target: target || null } : { text }, network));
  const what = isPair ? "source" : "text";
  const [ofClean, ofCorrupted] = inputs.map(({ ids, sourceIds }) => (isPair ? sourceIds : ids));
  if (ofClean.join() === ofCorrupted.join()) throw new TextError(`the clean and the corrupted ${what} have equal tokens: change at least one word`);
  if (ofClean.length !== ofCorrupted.length) {
    const lengths = `the clean ${what} has ${ofClean.length} tokens and the corrupted ${what} ${ofCorrupted.length}`;
    throw new TextError(`${lengths}: choose words with equal numbers of tokens`);
  }
  /** @type {number[]} */
  let best = [];
  if (isPair && !target) {
    const [one, other] = inputs.map(({ ids }) => [...ids.slice(1), end]);
    const at = one.findIndex((id, i) => other[i] !== undefined && id !== other[i]);
    if (at < 0) throw new TextError("the model writes the same target for both sources: give a target prefix, or change another word");
    best = [one[at], other[at]];
    for (const input of inputs) input.ids = inputs[0].ids.slice(0, at + 1);
  }
  const runs = inputs.map(newRun);
  const position = runs[0].answerPosition();
  for (const run of runs) await run.compute();
  if (!best.length) best = runs.map((run) => largest(run.logits(position), 1)[0]);
  if (answer) best[0] = reading.answerId(answer);
  if (wrong) best[1] = reading.answerId(wrong);
  if (best[0] === best[1]) throw new TextError(`the answer and the wrong answer are both '${reading.tokenizer.shown(best[0])}': give two different tokens`);
  return { clean: runs[0], corrupted: runs[1], position, answer: best[0], wrong: best[1], note: inputs[0].note };
}

/**
 * Return the share that each patch restores, one row per layer, and the logit differences of both runs.
 * @param {Pair} pair
 * @param {[string, string][]} places name of each layer, and of its tensor
 */
async function sharesOf({ clean, corrupted, position, answer, wrong }, places) {
  const metric = (/** @type {ComputedRun} */ run) => {
    const logits = run.logits(position);
    return logits[answer] - logits[wrong];
  };
  const [ofClean, ofCorrupted] = [metric(clean), metric(corrupted)];
  if (ofClean === ofCorrupted) throw new TextError("both runs have the same logit difference: choose other texts or answers");
  /** @type {number[][]} */
  const rows = [];
  for (const [, name] of places) {
    /** @type {number[]} */
    const row = [];
    for (const index of range(0, clean.tensor(name).shape[1])) {
      const from = part(clean.tensor(name), index);
      const isEqual = part(corrupted.tensor(name), index).every((x, i) => x === from[i]);
      const patched = corrupted.copy();
      if (!isEqual) await patched.compute((one, x) => one === name && part(x, index).set(from));
      row.push(isEqual ? 0 : (metric(patched) - ofCorrupted) / (ofClean - ofCorrupted)); // equal activations restore nothing
    }
    rows.push(row);
  }
  return { rows, clean: ofClean, corrupted: ofCorrupted };
}

/** Return a view of the values of a position (1, T, D) or of a head (1, H, T, W). @param {Tensor} x @param {number} index */
function part({ shape, data }, index) {
  const size = data.length / shape[1];
  return data.subarray(index * size, (index + 1) * size);
}
