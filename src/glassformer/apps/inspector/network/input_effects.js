/**
 * Input tokens: how much a logit loses if the mean embedding replaces that of one token. Same rules as
 * `inspection/input_effects.py`, without the estimate, which needs gradients.
 *
 * @import { ComputedRun } from "./computed_run.js"
 * @import { InputEffects } from "../panels/inputs.js"
 */

import { largest, logitsAt } from "./heads.js";
import { meanOf } from "./spread.js";
import { range, widthOf } from "./tensors.js";
import { TextError } from "./tokenizer.js";

/**
 * Return the effect of each input token on a logit, or on the difference of two logits.
 * @param {ComputedRun} run
 * @param {{position: number | null, token: string, against: string}} what `token` is by default the prediction
 * @param {(done: number, total: number) => void} report
 */
export async function inputEffects(run, { position, token, against }, report) {
  const { facts: { model, outputs }, reading: { rules }, input: { ids, sourceIds } } = run;
  const at = model.pooling ? 0 : position ?? (model.labels.length ? ids.length - 1 : run.answerPosition());
  const names = model.labels.length ? model.labels : run.vocabulary;
  const idOf = (/** @type {string} */ text) => (model.labels.length ? labelId(model.labels, text) : run.reading.answerId(text));
  const chosen = token ? idOf(token) : largest(run.logits(at), 1)[0];
  const other = against ? idOf(against) : null;
  if (chosen === other) throw new TextError(`both tokens are token ${chosen}: give two different tokens`);
  const logit = (/** @type {ComputedRun} */ { tensors }) => {
    const logits = logitsAt(/** @type {any} */ (tensors.get("logits")), at);
    return logits[chosen] - (other === null ? 0 : logits[other]);
  };
  // Tokens as pairs of a tensor of embeddings and a row: those of a source come first
  const own = rules.is_pair || model.is_causal ? "decoder" : "encoder";
  const places = [...(rules.is_pair ? sourceIds.map((_, row) => ({ name: "encoder.embeddings", row })) : []), ...ids.map((_, row) => ({ name: `${own}.embeddings`, row }))];
  const means = await meanEmbeddings(run);
  const isRead = (/** @type {{name: string, row: number}} */ { name, row }) => name !== "decoder.embeddings" || row <= at; // a decoder reads no later tokens
  const [total, full] = [places.filter(isRead).length, logit(run)];
  const exact = [];
  for (const [i, place] of places.entries()) {
    if (!isRead(place)) {
      exact.push(0);
      continue;
    }
    const changed = run.copy();
    const mean = /** @type {import("./tensors.js").Tensor} */ (means.get(place.name));
    const [begin, end] = [place.row * widthOf(mean), (place.row + 1) * widthOf(mean)];
    await changed.compute((name, x) => { if (name === place.name) x.data.set(mean.data.subarray(begin, end), begin); });
    exact.push(full - logit(changed));
    report(i + 1, total);
  }
  const named = outputs === "number" ? {} : { token: names[chosen], ...(other === null ? {} : { against: names[other] }) };
  return /** @type {InputEffects} */ ({ ...run.names, measure: "logit", ...named, logit: full, exact, estimate: null, correlation: null });
}

/** @param {string[]} labels @param {string} text */
function labelId(labels, text) {
  if (!labels.includes(text)) throw new TextError(`there is no label '${text}': labels are ${labels.join(", ")}`);
  return labels.indexOf(text);
}

/** Return the tensors of a run in which the mean row of the table replaces that of each token. @param {ComputedRun} run */
async function meanEmbeddings(run) {
  /** @type {Map<string, Float32Array>} */
  const rows = new Map();
  const rowOf = (/** @type {string} */ table) => {
    const { data, shape: [n, width] } = run.network.weights.get(table);
    return Float32Array.from({ length: width }, (_, j) => meanOf(range(0, n).map((i) => data[i * width + j])));
  };
  const changed = run.copy();
  const isRecurrent = run.facts.model.kind === "recurrent"; // its embeddings are the rows of the table
  await changed.compute((name, x) => {
    const stack = (isRecurrent ? /^(\w+)\.embeddings$/ : /^(\w+)\.embeddings\.tokens$/).exec(name)?.[1];
    if (!stack) return;
    const table = isRecurrent ? `${stack}.tokens.weight` : `${name}.weight`;
    const mean = rows.get(table) ?? rowOf(table);
    rows.set(table, mean);
    for (let begin = 0; begin < x.data.length; begin += mean.length) x.data.set(mean, begin);
  });
  return changed.tensors;
}
