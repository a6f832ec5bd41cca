/**
 * Texts: a box for a set of texts, and the texts of a set in which a head or a neuron is most active.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Model } from "../page/types.js"
 *
 * @typedef {{mean: number, deviation: number | null, quartiles: [number, number, number], baseline: number | null, is_beyond: boolean}} Beside
 * Statistics of a number over a set of texts. The baseline is the mean of the other parts.
 *
 * @typedef {{number: number, tokens: string[], activity: (number | null)[], strength: number}} StrongText
 * @typedef {{model: string, units: string, unit: number, n_units: number, n_texts: number, median: number, high: number, texts: StrongText[]}} Strongest
 */

import { Latest, isQuick, withProgress } from "../page/app.js";
import { colourOf } from "../page/colours.js";
import { button, fill, h, numberField, select } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { stripScene, tokenStrip } from "../page/strip.js";
import { fixed, visible } from "../page/text.js";

/** @type {Tab} */
export const textsTab = { id: "texts", title: "Texts", create: createTexts, exists: (model) => model.kind !== "recurrent", route: "/api/strongest", needs_no_run: true };

/** Largest number of tokens of a text of the validation data. */
const MAX_TOKENS = 48;
/** Largest file in bytes, below the largest request of the server. */
const MAX_FILE = 1e6;

/**
 * Return the parts of a model whose heads or neurons can be chosen, such as "decoder.0.head", in the order of the layers.
 * @param {Model | null} model
 */
function unitsOf(model) {
  const places = Object.entries(model?.attention ?? {}).flatMap(([kind, { layers }]) => Array.from({ length: layers }, (_, layer) => ({ kind, layer })));
  return places.flatMap(({ kind, layer }) => (kind === "cross" ? ["head"] : ["head", "neuron"]).map((what) => `${kind}.${layer}.${what}`));
}

/**
 * Return the spread of a number over texts, with its baseline, as text; empty for one text.
 * @param {Beside | undefined} beside
 * @param {number} nTexts
 */
export function spreadText(beside, nTexts) {
  if (!beside || nTexts < 2) return "";
  const [low, middle, high] = beside.quartiles;
  return `; deviation ${fixed(beside.deviation)}, quartiles ${fixed(low)}, ${fixed(middle)}, ${fixed(high)} over ${nTexts} texts; ` +
    `mean of the others ${fixed(beside.baseline)}${beside.is_beyond ? "; beyond the baseline" : ""}`;
}

/** Header of the cells of `spreadCells`. */
export const spreadHeader = ["mean", "deviation", "25 %", "50 %", "75 %", "mean of the others", "beyond"];

/** Return the cells of a number over a set of texts. @param {Beside} beside @returns {(string | number | null)[]} */
export function spreadCells({ mean, deviation, quartiles, baseline, is_beyond }) {
  return [mean, deviation, ...quartiles, baseline, is_beyond ? "yes" : ""];
}

/**
 * Create a box for texts, one per line. Its buttons read texts from the validation data of the run or from a file.
 * @param {App} app
 * @param {string} label
 */
export function textBox(app, label) {
  const area = h("textarea", { rows: 4, spellcheck: "false", placeholder: "one text per line", "aria-label": label, oninput: () => write() });
  const count = h("span", { class: "about" });
  const file = h("input", { type: "file", accept: "text/*,.txt,.csv,.tsv", hidden: true, onchange: () => void readFile() });
  const validation = button("texts of the model", () => void readValidation(true), { class: "quiet", hidden: !app.source.answers("/api/texts") });
  const open = button("open a file", () => file.click(), { class: "quiet" });
  const element = h("div", { class: "text-set" }, h("label", { class: "field wide" }, h("span", {}, label), area), h("div", { class: "row" }, validation, open, file, count));
  const latest = new Latest(app, element);
  const lines = () => area.value.split(/\r?\n/).filter((line) => line.trim());

  function write() {
    const n = lines().length;
    count.textContent = `${n} ${n === 1 ? "text" : "texts"}`;
  }

  /** @param {string} text */
  function set(text) {
    area.value = text;
    write();
  }

  async function readFile() {
    const [chosen] = file.files ?? [];
    if (chosen && chosen.size > MAX_FILE) app.say(`${chosen.name} is larger than 1 MB, the limit of a request: choose a smaller file.`);
    else if (chosen) set(await chosen.text());
    file.value = "";
  }

  /** @param {boolean} isAsked */
  async function readValidation(isAsked) {
    const model = app.store.state.model?.id ?? "";
    await latest.use(app.data.once(`texts of ${model}`, () => app.source.get(`/api/texts?model=${encodeURIComponent(model)}`, model)), ({ lines: found }) => {
      if (found.length && (isAsked || !area.value)) set(found.join("\n"));
      else if (isAsked) app.say("The validation data of this model was not found: write texts, or open a file.");
    });
  }

  write();
  return { element, lines, readValidation };
}

/** @param {App} app @returns {Panel} */
function createTexts(app) {
  const { store } = app;
  const { model } = store.state; // for another model, a new panel is created
  const all = unitsOf(model);
  const box = textBox(app, "texts");
  const parts = select("part", all.map((name) => [name, name.replace(".head", ": heads").replace(".neuron", ": neurons")]), (units) => choose(units, 0));
  const number = numberField("number", { min: 0, max: Infinity }, (unit) => choose(parts.list.value, unit));
  const start = button("Find", () => load(), { class: "primary" });
  const progress = h("span", { class: "about", "aria-live": "polite" });
  const facts = h("p", { class: "detail" });
  const list = h("ol", { class: "strong-texts" });
  const card = frame({
    title: "Strongest texts",
    picture: () => found && {
      name: `${found.units}.${found.unit}`, data: () => found,
      scene: () => stripScene(found?.texts.map((text) => ({ title: titleOf(text), items: items(text) })) ?? []),
      table: () => ({
        header: ["text", "strength", "random text: median", "95 %", "tokens"],
        rows: found?.texts.map(({ number: place, strength, tokens }) =>
          [place + 1, strength, found?.median ?? null, found?.high ?? null, tokens.map(visible).join(" ")]) ?? [],
      }),
    },
    explanation: "The texts in which a head or a neuron is most active, with its activity at each token. Head: length of the vector that it adds to the residual stream. Neuron: its value after the activation. The baseline is a random text of the set. The first token of a decoder is left out.",
    formula: "strength of a text = largest activity of its tokens",
  }, box.element, h("div", { class: "row" }, parts.element, number.element, start, progress), facts, list);
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
    if (!app.source.answers("/api/texts")) return;
    await box.readValidation(false);
    const lines = box.lines();
    if (!found && lines.length && isQuick(app, lines.length, MAX_TOKENS)) load();
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
    const { units, unit, n_units: nUnits, n_texts: nTexts, median, high, texts } = found;
    facts.textContent = `${units} ${unit} of ${nUnits}, ${nTexts} texts. A random text: median ${fixed(median)}, 95 % have at most ${fixed(high)}.`;
    fill(list, ...texts.map((text) => h("li", {}, h("p", { class: "about" }, titleOf(text)), tokenStrip(items(text), titleOf(text)))));
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
