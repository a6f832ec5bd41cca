/**
 * Next token: probabilities at the selected position, with sampling rules that the user can choose.
 *
 * @import { App, Panel } from "../page/app.js"
 * @import { Bar } from "../page/charts.js"
 * @import { Model, Run, State } from "../page/types.js"
 */

import { barList, barsScene } from "../page/charts.js";
import { button, fill, h, keepHeight, slider } from "../page/dom.js";
import { floats } from "../page/source.js";
import { frame } from "../page/frame.js";
import { Latest } from "../page/app.js";
import { labelAfter } from "../page/letters.js";
import { descending, entropy, probabilities, softmax } from "../page/sampling.js";
import { byProbability, count, fixed, percent } from "../page/text.js";
import { partsOff } from "./ablation.js";
import { mainSide, mainTokens, positionText, shownPosition, tokensBefore } from "../page/state.js";

const SHOWN = 15;

/** Return the names of the parts that the panel beside the card has switched off. @param {State} state */
const partsOffBeside = ({ panel, off }) => (panel === "ablation" ? partsOff(off) : "");

/**
 * Return the sampling rules in words; empty for the model's own probabilities.
 * @param {{temperature: number, top_k: number, top_p: number}} rules
 */
export function rulesText({ temperature, top_k, top_p }) {
  const rules = [temperature === 1 ? "" : `temperature ${temperature}`, top_k ? `top-k ${top_k}` : "", top_p < 1 ? `top-p ${top_p}` : ""];
  return rules.filter(Boolean).join(", ");
}

/** Return the formula of the numbers on the card. @param {Run} run @param {Model} model */
function formulaOf(run, model) {
  if (model.has_head_over_tokens) return "p = softmax(logits / temperature)";
  if (run.number !== null) return "number = mean + std · output";
  return model.is_multi_label ? "p = sigmoid(logit)" : "p = softmax(logits)";
}

/** Return the explanation of the card for a model that predicts labels or a number. @param {Run} run @param {Model} model */
function aboutLabels(run, model) {
  if (run.number !== null) return "The number that the model predicts for the text.";
  if (model.is_multi_label) return "Probability of each label of the text. The labels are independent, so the probabilities do not sum to 1.";
  return `Probability of each label of the ${run.labels ? "text" : "token"}.`;
}

/**
 * @param {App} app
 * @returns {Panel}
 */
export function createNext(app) {
  const { store } = app;
  const where = h("p", { class: "detail", "aria-live": "polite" });
  const list = h("div");
  const facts = h("p", { class: "facts" });
  const changes = h("p", { class: "changes" });
  const temperature = slider("temperature", { min: 0, max: 2, step: 0.05 }, (x) => store.set({ temperature: x }), (x) => x.toFixed(2));
  const topK = slider("top-k", { min: 0, max: 100, step: 1 }, (x) => store.set({ top_k: x }), (x) => (x ? String(x) : "all"));
  const topP = slider("top-p", { min: 0.05, max: 1, step: 0.01 }, (x) => store.set({ top_p: x }), (x) => x.toFixed(2));
  const sliders = h("div", { class: "sliders" }, temperature.element, topK.element, topP.element,
    h("div", { class: "row" }, button("reset", () => store.set({ temperature: 1, top_k: 0, top_p: 1 }), { class: "quiet", title: "Temperature 1, no limit: the probabilities of the model" }),
      button("rules of generate", () => store.set(generationRules()), { class: "quiet", title: "The sampling rules of generation.json, which the command generate uses" })));
  const card = frame({
    title: "Next token",
    picture: () => {
      const { state } = store;
      const { temperature, top_k, top_p } = state;
      const title = `${where.textContent || "Labels"} (temperature ${temperature}, top-k ${top_k || "all"}, top-p ${top_p})`;
      const rows = bars.map(({ label, value, before }) => ({ token: label, probability: value, before: before ?? value }));
      return rows.length ? {
        name: `next-token-${shownPosition(state)}`, scene: () => barsScene(bars, title),
        data: () => ({ position: shownPosition(state), temperature, top_k, top_p, tokens: rows }),
        table: () => ({ header: ["token", "probability", "probability before the rules"], rows: rows.map((row) => Object.values(row)) }),
      } : null;
    },
    explanation: "Probability of each token at the position.", formula: "p = softmax(logits / temperature)",
  }, where, changes, list, facts, sliders);
  card.element.classList.add("next");
  const latest = new Latest(app, list);
  /** Return the sampling rules that `generate` uses for this model. */
  function generationRules() {
    const { temperature = 1, top_k = 0, top_p = 1 } = store.state.model?.generation ?? {};
    return { temperature: Number(temperature), top_k: Number(top_k ?? 0), top_p: Number(top_p ?? 1) };
  }
  /** @type {{key: string, position: number, logits: Float32Array, names: string[]} | null} */
  let loaded = null;
  /** @type {Bar[]} */
  let bars = [];
  let timer = 0;

  /** Request the full logits of the position, after the pointer has rested for a short time. */
  function request() {
    const { run, model, hover } = store.state;
    const position = shownPosition(store.state);
    if (!run || !model?.has_head_over_tokens || position < 0 || isLoaded()) return;
    const [off, key] = [partsOffBeside(store.state), shownKey()];
    clearTimeout(timer);
    timer = setTimeout(() => {
      const query = { position, off: off || undefined, mean: off ? store.state.mean : undefined };
      void latest.use(Promise.all([app.data.bytes(run, "logits", query), app.data.vocabulary(run.model)]), ([bytes, names]) => {
        loaded = { key, position, logits: floats(bytes.buffer), names };
        draw();
      });
    }, hover ? 150 : 0);
  }

  /** Return a key for what the card shows: the run, the parts that are off, and the position. */
  function shownKey() {
    const off = partsOffBeside(store.state);
    return JSON.stringify([store.state.run?.run, shownPosition(store.state), off, off ? store.state.mean : 0]);
  }

  const isLoaded = () => loaded?.key === shownKey();

  /** Return the sentences that name what changes the probabilities. @param {State} state @param {string} rules */
  function changesText(state, rules) {
    const off = partsOffBeside(state);
    const texts = [off ? `Without ${off.replaceAll(",", ", ")}.` : "", rules ? `With the rules ${rules}. Outline and first number: without the rules.` : ""];
    if (state.panel === "compare" && state.other_run) texts.push("First model.");
    return texts.filter(Boolean).join(" ");
  }

  function draw() {
    const { state } = store;
    const { run, model } = state;
    if (!run || !model) {
      bars = [];
      fill(list);
      where.textContent = facts.textContent = "";
      return;
    }
    const isLabels = !model.has_head_over_tokens;
    const ofText = run.labels !== null || run.number !== null;
    card.element.hidden = isLabels && !ofText && !model.labels.length; // for example a model of text vectors
    const isSteps = state.panel === "steps"; // the panel "Step by step" shows the probabilities
    const ofLabels = run.number !== null ? "Number" : run.labels ? "Labels" : "Label of the token";
    card.title.textContent = isSteps ? "Sampling rules of the steps" : isLabels ? ofLabels : run.target.length ? "Next token" : "Token at the position";
    sliders.hidden = isLabels;
    const position = shownPosition(state);
    const rules = isLabels ? "" : rulesText(state);
    const about = card.element.querySelector(".about")?.firstChild;
    const aboutTokens = isSteps ? "The probabilities of the steps follow these rules." : "Probability of each token at the position.";
    if (about) about.textContent = `${isLabels ? aboutLabels(run, model) : aboutTokens} `;
    const formula = card.element.querySelector(".formula");
    if (formula) formula.textContent = formulaOf(run, model);
    where.hidden = ofText || isSteps;
    where.textContent = ofText ? "" : positionText(state, position);
    changes.textContent = isSteps ? "" : changesText(state, rules);
    card.element.classList.toggle("has-rules", rules !== "");
    card.tools.hidden = list.hidden = facts.hidden = isSteps;
    bars = ofText ? labelBars(state) : isLoaded() ? shapedBars(state) : topBars(state, position);
    fill(list, barList(bars));
    for (const part of [where, list, facts]) keepHeight(part);
    card.refresh();
  }

  /** @param {State} state @returns {Bar[]} */
  function labelBars({ run, ablated, ...state }) {
    const isOff = state.panel === "ablation" && ablated?.run === run?.run;
    const shown = isOff ? ablated?.after : run;
    facts.textContent = shown?.number === null || shown?.number === undefined ? "" : fixed(shown.number, 4);
    return byProbability(shown?.labels ?? []).map(({ name, probability }) => ({ label: name, value: probability, text: percent(probability) }));
  }

  /** Return bars of the ten tokens that the run contains. @param {State} state @param {number} position @returns {Bar[]} */
  function topBars(state, position) {
    facts.textContent = "";
    const chosen = actualId(state, position);
    const { ablated, run } = state;
    const ofParts = ablated?.run === run?.run ? ablated?.after.positions[position]?.top : [];
    return ((partsOffBeside(state) ? ofParts : mainTokens(state)[position]?.top) ?? []).map(([id, text, probability]) => ({
      label: labelAfter(tokensBefore(state, position), text), value: probability, text: percent(probability), is_marked: id === chosen, title: `id ${id}`,
    }));
  }

  /** Return bars from the full logits. @param {State} state @returns {Bar[]} */
  function shapedBars(state) {
    if (!loaded) return [];
    const { logits, names, position } = loaded;
    const before = softmax(logits);
    const shaped = probabilities(logits, state);
    const chosen = actualId(state, position);
    const kept = shaped.reduce((n, p) => n + Number(p > 0), 0);
    facts.textContent = `${count(kept)} of ${count(logits.length)} tokens can be chosen; entropy ${fixed(entropy(shaped), 2)} nats` +
      ` (${fixed(entropy(before), 2)} before these rules).`;
    return descending(before).slice(0, SHOWN).map((id) => ({
      label: labelAfter(tokensBefore(state, position), names[id] ?? `id ${id}`), value: shaped[id] ?? 0, before: before[id] ?? 0,
      text: rulesText(state) ? `${percent(before[id] ?? 0)} → ${percent(shaped[id] ?? 0)}` : percent(before[id] ?? 0),
      is_marked: id === chosen, title: `id ${id}; logit ${fixed(logits[id], 2)}; before the rules ${percent(before[id] ?? 0)}`,
    }));
  }

  /** Return the id of the next token of the text, or of the token at the position of an encoder. @param {State} state @param {number} position */
  function actualId({ run }, position) {
    if (!run) return -1;
    if (run.written.length) return run.written[position]?.id ?? -1;
    return run[mainSide(store.state)][position + (run.target.length ? 1 : 0)]?.id ?? -1;
  }

  return {
    element: card.element,
    render(changed) {
      const { state } = store;
      temperature.write(state.temperature);
      topK.write(state.top_k);
      topP.write(state.top_p);
      if (["run", "pos", "hover", "across", "temperature", "top_k", "top_p", "dark", "panel", "off", "mean", "ablated", "other_run"].some((key) => changed.has(key))) {
        draw();
        request();
      }
    },
  };
}
