/**
 * Next token: probabilities at the selected position, with temperature, top-k and top-p.
 *
 * @import { App, Panel } from "./app.js"
 * @import { Bar } from "./bars.js"
 * @import { Picture, State } from "./types.js"
 */

import { barList, barsScene } from "./bars.js";
import { button, fill, h, keepHeight, slider } from "./dom.js";
import { floats } from "./decode.js";
import { frame } from "./frame.js";
import { Latest } from "./app.js";
import { descending, entropy, probabilities, softmax } from "./sampling.js";
import { mainSide, mainTokens, shownPosition } from "./state.js";
import { count, fixed, percent, visible } from "./text.js";

const SHOWN = 15;

/**
 * @param {App} app
 * @returns {Panel}
 */
export function createNext(app) {
  const { store } = app;
  const where = h("p", { class: "detail", "aria-live": "polite" });
  const list = h("div");
  const facts = h("p", { class: "facts" });
  const temperature = slider("temperature", { min: 0, max: 2, step: 0.05 }, (x) => store.set({ temperature: x }), (x) => x.toFixed(2));
  const topK = slider("top-k", { min: 0, max: 100, step: 1 }, (x) => store.set({ top_k: x }), (x) => (x ? String(x) : "all"));
  const topP = slider("top-p", { min: 0.05, max: 1, step: 0.01 }, (x) => store.set({ top_p: x }), (x) => x.toFixed(2));
  const sliders = h("div", { class: "sliders" }, temperature.element, topK.element, topP.element,
    button("reset", () => store.set({ temperature: 1, top_k: 0, top_p: 1 }), { class: "quiet", title: "Temperature 1, no limit" }));
  const card = frame({
    title: "Next token", picture: () => picture(),
    explanation: "Probability of each token at the position.", formula: "p = softmax(logits / temperature)",
  }, where, list, facts, sliders);
  card.element.classList.add("next");
  const latest = new Latest(app, list);
  /** @type {{run: string, position: number, logits: Float32Array, names: string[]} | null} */
  let loaded = null;
  /** @type {Bar[]} */
  let bars = [];
  let timer = 0;

  /** Request the full logits of the position, after a short rest of the pointer. */
  function request() {
    const { run, model, hover } = store.state;
    const position = shownPosition(store.state);
    if (!run || !model?.has_head_over_tokens || position < 0 || isLoaded()) return;
    clearTimeout(timer);
    timer = setTimeout(() => {
      const key = `/api/run/${run.run}/logits?position=${position}`;
      if (app.source.isEmbedded && !app.source.has(`GET ${key}`)) return;
      void latest.use(Promise.all([app.data.bytes(run, "logits", { position }), app.data.vocabulary(0)]), ([bytes, names]) => {
        loaded = { run: run.run, position, logits: floats(bytes.buffer), names };
        draw();
      });
    }, hover ? 150 : 0);
  }

  function isLoaded() {
    return loaded?.run === store.state.run?.run && loaded?.position === shownPosition(store.state);
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
    const heading = card.element.querySelector("h2");
    const isLabels = !model.has_head_over_tokens;
    if (heading) heading.textContent = isLabels ? (run.labels ? "Labels" : "Label of the token") : run.target.length ? "Next token" : "Token at the position";
    sliders.hidden = isLabels || (app.source.isEmbedded && !isLoaded());
    const position = shownPosition(state);
    const token = mainTokens(state)[position];
    const about = card.element.querySelector(".about")?.firstChild;
    if (about) about.textContent = run.labels ? "Probability of each label of the text." : isLabels ? "Probability of each label of the token." : "Probability of each token at the position.";
    where.hidden = Boolean(run.labels);
    where.textContent = run.labels || !token ? "" : `${run.target.length ? "after" : "at"} position ${position}: ${visible(token.text)}`;
    bars = run.labels ? labelBars(state) : isLoaded() ? shapedBars(state) : topBars(state, position);
    fill(list, barList(bars));
    for (const part of [where, list, facts]) keepHeight(part);
    card.refresh();
  }

  /** @param {State} state @returns {Bar[]} */
  function labelBars({ run }) {
    facts.textContent = "";
    return (run?.labels ?? []).map(({ name, probability }) => ({ label: name, value: probability, text: percent(probability) }));
  }

  /** Bars of the ten tokens that came with the run. @param {State} state @param {number} position @returns {Bar[]} */
  function topBars(state, position) {
    facts.textContent = "";
    const chosen = actual(state, position);
    return (mainTokens(state)[position]?.top ?? []).map(([id, text, probability]) => ({
      label: text, value: probability, text: percent(probability), is_marked: id === chosen, title: `id ${id}`,
    }));
  }

  /** Bars from the full logits. @param {State} state @returns {Bar[]} */
  function shapedBars(state) {
    if (!loaded) return [];
    const { logits, names, position } = loaded;
    const before = softmax(logits);
    const shaped = probabilities(logits, state);
    const chosen = actual(state, position);
    let kept = 0;
    for (const p of shaped) kept += p > 0 ? 1 : 0;
    facts.textContent = `${count(kept)} of ${count(logits.length)} tokens can be chosen; entropy ${fixed(entropy(shaped), 2)} nats` +
      ` (${fixed(entropy(before), 2)} before).`;
    return descending(before).slice(0, SHOWN).map((id) => ({
      label: names[id] ?? `id ${id}`, value: shaped[id] ?? 0, before: before[id] ?? 0, text: percent(shaped[id] ?? 0),
      is_marked: id === chosen, title: `id ${id}; logit ${fixed(logits[id], 2)}; before the rules ${percent(before[id] ?? 0)}`,
    }));
  }

  /** The id that follows in the text, or that is at the position of an encoder. @param {State} state @param {number} position */
  function actual({ run }, position) {
    if (!run) return -1;
    if (run.written.length) return run.written[position]?.id ?? -1;
    return run[mainSide(store.state)][position + (run.target.length ? 1 : 0)]?.id ?? -1;
  }

  /** @returns {Picture | null} */
  function picture() {
    if (!bars.length) return null;
    const { state } = store;
    const title = `${where.textContent || "Labels"} (temperature ${state.temperature}, top-k ${state.top_k || "all"}, top-p ${state.top_p})`;
    return {
      name: `next-token-${shownPosition(state)}`, scene: () => barsScene(bars, title),
      table: () => ({
        header: ["token", "probability", "probability before the rules"],
        rows: bars.map((bar) => [bar.label, bar.value, bar.before ?? bar.value]),
      }),
      data: () => ({ position: shownPosition(state), temperature: state.temperature, top_k: state.top_k, top_p: state.top_p, tokens: bars.map(({ label, value, before }) => ({ token: label, probability: value, before: before ?? value })) }),
    };
  }

  return {
    element: card.element,
    render(changed) {
      const { state } = store;
      temperature.write(state.temperature);
      topK.write(state.top_k);
      topP.write(state.top_p);
      if (["run", "pos", "hover", "across", "temperature", "top_k", "top_p", "dark", "panel"].some((key) => changed.has(key))) {
        draw();
        request();
      }
    },
  };
}
