/**
 * One head or one neuron: the tokens that it raises and lowers, its strength in all texts of a set, and the strongest texts.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Candidate, Model } from "../page/types.js"
 *
 * @typedef {{number: number, tokens: string[], activity: (number | null)[], strength: number}} StrongText
 * @typedef {{
 *   model: string, units: string, unit: number, n_units: number, n_texts: number, median: number, high: number, strengths: number[],
 *   texts: StrongText[], raised: Candidate[], lowered: Candidate[], reason: string,
 * }} Strongest
 * `strengths` has the strength of the unit in each text. Without `raised` and `lowered`, `reason` says why the effect on tokens is not known.
 */

import { Latest, isQuick, withProgress } from "../page/app.js";
import { barList, histogramScene } from "../page/charts.js";
import { colourOf } from "../page/colours.js";
import { button, fill, h, numberField, select } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { sceneElement } from "../page/scene.js";
import { stripScene, tokenStrip } from "../page/strip.js";
import { fixed, signed, visible } from "../page/text.js";
import { textBox } from "./texts.js";

/** @type {Tab} */
export const unitTab = { id: "unit", title: "Units", create: createUnit, exists: (model) => model.kind !== "recurrent", route: "/api/strongest", needs_no_run: true };

/** Largest number of tokens of a text of the validation data. */
const MAX_TOKENS = 48;
/** Number of texts that every model reads in a few seconds. */
const FEW = 10;

/**
 * Return the parts of a model whose heads or neurons can be chosen, such as "decoder.0.head", in the order of the layers.
 * @param {Model | null} model
 */
function unitsOf(model) {
  const places = Object.entries(model?.attention ?? {}).flatMap(([kind, { layers }]) => Array.from({ length: layers }, (_, layer) => ({ kind, layer })));
  return places.flatMap(({ kind, layer }) => (kind === "cross" ? ["head"] : ["head", "neuron"]).map((what) => `${kind}.${layer}.${what}`));
}

/**
 * Return buttons that show one head in other panels.
 * @param {App} app
 * @param {string} kind
 * @param {number} layer
 * @param {number} head
 * @param {string} [here] the panel that is open
 */
export function headLinks({ store, source }, kind, layer, head, here) {
  const { model } = store.state;
  if (!model?.attention[kind]) return [];
  const isTransformer = model.kind !== "recurrent";
  return [
    here !== "attention" && button("Open this head in Attention", () => store.set({ panel: "attention", kind, layer, head })),
    isTransformer && source.answers("/effects") && button("Switch this head off", () => store.set({ panel: "ablation", kind, off: `${kind}.${layer}.${head}` })),
    isTransformer && here !== unitTab.id && source.answers("/api/strongest") && button("Tokens and texts of this head", () => store.set({ panel: unitTab.id, unit: `${kind}.${layer}.head.${head}` })),
  ].filter((one) => one !== false);
}

/** @param {App} app @returns {Panel} */
function createUnit(app) {
  const { store } = app;
  const { model } = store.state; // for another model, a new panel is created
  const all = unitsOf(model);
  const box = textBox(app, "texts");
  const parts = select("part", all.map((name) => [name, name.replace(".head", ": heads").replace(".neuron", ": neurons")]), (units) => choose(units, 0));
  const number = numberField("number", { min: 0, max: Infinity }, (unit) => choose(parts.list.value, unit));
  const start = button("Find", () => load(), { class: "primary" });
  const progress = h("span", { class: "about", "aria-live": "polite" });
  const facts = h("p", { class: "detail" });
  const [list, moved, spread, links] = [h("div", { class: "strong-texts" }), h("div", { class: "unit-tokens" }), h("div"), h("div", { class: "row" })];
  const set = h("details", { class: "more" }, h("summary", {}, "the texts that are searched"), box.element);
  const card = frame({
    title: "Unit",
    picture: () => found && {
      name: `${found.units}.${found.unit}`, data: () => found,
      scene: () => stripScene(found?.texts.map((text) => ({ title: titleOf(text), items: items(text) })) ?? []),
      table: () => ({
        header: ["text", "strength", "random text: median", "95 %", "tokens"],
        rows: [
          ...(found?.texts ?? []).map(({ number: place, strength, tokens }) => [place + 1, strength, found?.median ?? null, found?.high ?? null, tokens.map(visible).join(" ")]),
          ...[...(found?.raised ?? []), ...(found?.lowered ?? [])].map(([, token, effect]) => [visible(token), effect, null, null, "effect on the logit"]),
        ],
      }),
    },
    explanation: "What one head or neuron does, and when. Activity of a head: length of the vector that it adds to the residual stream. Activity of a neuron: its value after the activation. The first token of a decoder is left out. Effect on a token: what the unit adds to its logit, as a mean over the strongest texts, minus the mean of all tokens.",
    formula: "strength of a text = largest activity of its tokens",
  }, h("div", { class: "row" }, parts.element, number.element, start, progress), facts, h("div", { class: "unit-facts" }, moved, spread), links, list, set);
  const latest = new Latest(app, card.body);
  /** @type {Strongest | null} */
  let found = null;

  /** @param {string} units @param {number} unit */
  function choose(units, unit) {
    store.set({ unit: `${units}.${unit}` });
  }

  /** Return the part and the number that the view names; by default the first. @returns {[string, number]} */
  function chosen() {
    const [, units = "", unit = "0"] = /^(.+)\.(\d+)$/.exec(store.state.unit) ?? [];
    return all.includes(units) ? [units, Number(unit)] : [all[0] ?? "", 0];
  }

  function load() {
    const [units, unit] = chosen();
    const request = app.data.post("/api/strongest", { model: store.state.model?.id ?? "", lines: box.lines(), units, unit });
    void latest.use(withProgress(app, request, progress), (value) => {
      app.say("");
      found = value;
      draw();
    });
  }

  /** Show the texts of the validation data; find the strongest ones if the model is small. */
  async function begin() {
    if (app.source.answers("/api/texts")) await box.readValidation(false);
    const lines = box.lines();
    set.open ||= !lines.length; // nothing can be searched yet
    if (!found && lines.length && (lines.length <= FEW || isQuick(app, lines.length, MAX_TOKENS))) load();
  }

  /** @param {StrongText} text */
  function items({ tokens, activity }) {
    const range = /** @type {[number, number]} */ ([0, Math.max(1e-6, found?.texts[0]?.strength ?? 1)]);
    return tokens.map((token, i) => {
      const value = activity[i] ?? null;
      return { text: token, place: null, title: `${visible(token)}: ${fixed(value)}`, colour: value === null ? null : colourOf(Math.max(0, value), "sequential", range, store.state.dark) };
    });
  }

  /** @param {StrongText} text */
  const titleOf = ({ number: place, strength }) => `text ${place + 1}: ${fixed(strength)}`;

  function draw() {
    if (!found) return;
    const { units, unit, n_units: nUnits, n_texts: nTexts, median, high, texts, strengths, raised, lowered, reason } = found;
    const [kind = "", layer = "0", what] = units.split(".");
    const largest = Math.max(1e-9, ...[...raised, ...lowered].map(([, , effect]) => Math.abs(effect)));
    const bars = (/** @type {string} */ title, /** @type {Candidate[]} */ tokens) => h("div", {}, h("h3", {}, title),
      barList(tokens.map(([, label, effect]) => ({ label, value: Math.abs(effect) / largest, text: signed(effect, largest < 0.1 ? 4 : 2), title: `${visible(label)}: ${signed(effect, 6)} on its logit` }))));
    fill(moved, ...(reason ? [h("p", { class: "about" }, `Which tokens it raises is not known: ${reason}.`)] : [bars("Tokens that it raises", raised), bars("Tokens that it lowers", lowered)]));
    spread.hidden = strengths.length < FEW;
    fill(spread, h("h3", {}, "Strength in each text"), sceneElement(histogramScene(strengths, { median, "95 %": high })));
    fill(links, ...(what === "head" ? headLinks(app, kind, Number(layer), unit, unitTab.id)
      : [button("Open this feed-forward in the flow", () => store.set({ panel: "flow", flow: `${kind}.${layer}.0.ff` }))]));
    facts.textContent = `${units} ${unit} of ${nUnits}, in ${nTexts} ${nTexts === 1 ? "text" : "texts"}.${nTexts < FEW ? "" : ` Median ${fixed(median)}; 95 % of the texts have at most ${fixed(high)}.`}`;
    fill(list, h("h3", {}, "Strongest texts"), ...texts.map((text) => h("div", {}, h("p", { class: "about" }, titleOf(text)), tokenStrip(items(text), titleOf(text)))));
    card.refresh();
  }

  return {
    element: h("div", { class: "panel" }, card.element),
    render(changed) {
      if (changed.has("panel") && !box.lines().length) void begin();
      const [units, unit] = chosen();
      parts.list.value = units;
      number.write(unit);
      if (changed.has("unit") && found) load();
      else if (changed.has("dark")) draw();
    },
  };
}
