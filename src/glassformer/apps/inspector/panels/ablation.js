/**
 * Ablation: parts of the model are switched off, and the predictions are compared.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Candidate, Model, Run, State, Table } from "../page/types.js"
 * @import { Beside } from "./texts.js"
 *
 * @typedef {{log_prob: number | null, top: Candidate[]}} Position
 * @typedef {{loss: number | null, positions: Position[], labels: Run["labels"], number: number | null}} Outcome
 * @typedef {{measure?: string, token?: string, against?: string}} Named the measure, and the tokens or labels of a logit
 * @typedef {Named & {run: string, before: Outcome, after: Outcome}} Ablation
 * @typedef {Named & {
 *   feed_forward: Record<string, number[]>, layers: Record<string, number[]>, loss: number, n_texts: number,
 *   beside: Record<string, Beside>, [kind: string]: any,
 * }} Effects
 */

import { Latest, chosenKind, isQuickToSwitch, kindChoice, withProgress } from "../page/app.js";
import { barList } from "../page/charts.js";
import { colourOf, painted } from "../page/colours.js";
import { arrowKeys, button, choice, fill, h, refill } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { heatScene, heatTable } from "../page/heatmap.js";
import { labelAfter } from "../page/letters.js";
import { markTokens } from "../page/link.js";
import { positionSide, positionText, positionTokens, selectedPosition, shownPosition, tokensBefore } from "../page/state.js";
import { divergingLegend, stripScene, tokenStrip } from "../page/strip.js";
import { fixed, percent, signed, visible } from "../page/text.js";
import { answerFields, hasLogits, logitQuery, logitText } from "./attribution.js";
import { spreadCells, spreadHeader, spreadText, textBox } from "./texts.js";

/** @type {Tab} */
export const ablationTab = { id: "ablation", title: "Ablation", create: createAblation, exists: (model) => model.kind !== "recurrent", route: "/effects" };

const KL_OF_LABELS = "The labels are independent: the KL divergence is the sum over the labels.";
const MEASURES = /** @type {Record<string, string>} */ ({ loss: "Loss in nats per token", kl: "KL divergence in nats", change: "Mean change of the output" });

/** Return the parts of a text such as "decoder.0.3,decoder.1.ff,decoder.2.all". @param {string} off @returns {string[]} */
export function partNames(off) {
  return off.split(",").filter((name) => /^\w+\.\d+\.(\d+|ff|all)$/.test(name));
}

/** Return the name of a part, as the server expects it: "decoder.1.ff" is "decoder.1.feed_forward". @param {string} name */
export function partOf(name) {
  const [stack, layer, what = ""] = name.split(".");
  if (what === "all") return `${stack}.${layer}`;
  return `${stack}.${layer}.${what === "ff" ? "feed_forward" : `head.${what}`}`;
}

/** Return the parts that are off, as the server expects them. @param {string} off */
export function partsOff(off) {
  return partNames(off).map(partOf).join(",");
}

/** Return the effect of a part on the loss; NaN if it was not measured. @param {Effects | null} effects @param {string} name */
export function effectOf(effects, name) {
  const [kind = "", layer = "0", what = ""] = name.split(".");
  const row = Number(layer);
  if (what === "ff") return effects?.feed_forward[kind]?.[row] ?? NaN;
  if (what === "all") return effects?.layers[kind]?.[row] ?? NaN;
  return /** @type {number[][] | undefined} */ (effects?.[kind])?.[row]?.[Number(what)] ?? NaN;
}

/** Return the effects over a set of texts as a table, with their spread and their baseline. @param {Effects} effects @returns {Table} */
function spreadTable({ beside }) {
  return { header: ["part", ...spreadHeader], rows: Object.entries(beside).map(([name, one]) => [name, ...spreadCells(one)]) };
}

/** Return the formula of the effects of a model. @param {Model | null} model */
function effectFormula(model) {
  if (model?.has_head_over_tokens) return "effect = measure without the part − measure";
  return model?.labels.length ? "effect = KL(before ‖ after)" : "effect = mean |output after − output before|";
}

/** Return the second log-probability − the first; null without both. @param {(number | null | undefined)[]} both */
const differenceOf = ([was, is]) => (was === null || was === undefined || is === null || is === undefined ? null : is - was);

/**
 * Return tokens with the colours of the changes of their log-probabilities. Blue: more probable.
 * @param {import("../page/types.js").Token[]} tokens @param {import("../page/types.js").Side} side
 * @param {(number | null | undefined)[][]} both the two log-probabilities of each token @param {boolean} dark
 */
export function changeItems(tokens, side, both, dark) {
  return tokens.map(({ text }, index) => {
    const [was, is] = both[index] ?? [];
    const change = differenceOf([was, is]);
    return {
      text, place: { side, index }, colour: change === null ? null : colourOf(change, "diverging", [-3, 3], dark),
      title: `${index}: ${visible(text)}` + (change === null ? "" : ` · log-probability ${fixed(was, 2)} → ${fixed(is, 2)} (${signed(change, 2)})`),
    };
  });
}

/** Return the query for the measure of the state. @param {State} state @returns {Record<string, string | number | undefined>} */
export function measureQuery(state) {
  if (state.measure === "logit") return { logit: 1, ...logitQuery(state) };
  return state.measure === "next" ? { position: selectedPosition(state) } : {};
}

/** Describe the measure of an answer. @param {State} state @param {Named} of */
export function measureText(state, of) {
  if (of.measure === "logit") return logitText(state, of);
  if (state.measure === "next" && of.measure === "loss") return `−log p of the token that the model predicts ${positionText(state, selectedPosition(state))}`;
  return MEASURES[of.measure ?? "loss"] ?? "";
}

/** @param {App} app @returns {Panel} */
function createAblation(app) {
  const { store } = app;
  const kinds = kindChoice(store);
  const means = choice("Replacement", [["0", "replace by 0"], ["1", "replace by the mean"]], (mean) => store.set({ mean: Number(mean) }));
  const { model } = store.state; // for another model, a new panel is created
  const hasNext = model?.has_head_over_tokens && model.kind !== "encoder";
  const measures = choice("Measure", [["", hasNext ? "loss of the text" : "change of the prediction"], .../** @type {[string, string][]} */ (hasNext ? [["next", "prediction at the position"]] : []), ["logit", model?.pooling ? "a logit" : "a logit at the position"]], (measure) => {
    const isAgain = effects() !== null;
    store.set({ measure });
    if (isAgain && !isMeasuredAtOnce()) void measureAll();
  });
  measures.element.hidden = !app.source.answers("/api/stop") || !model || !hasLogits(model);
  /** The measure of a request: {} for that of the model, a position for −log p of its prediction, or a logit. */
  const asked = () => (measures.element.hidden ? {} : measureQuery(store.state));
  const fields = answerFields(app);
  const logitFields = h("div", { class: "row" }, ...fields.elements);
  const switches = h("div", { class: "scroll-x" });
  const all = button("all on", () => store.set({ off: "" }), { class: "quiet" });
  const loss = h("p", { class: "about" });
  const measure = button("Measure all", () => void measureAll(), { title: "This needs one run per part and may take a while" });
  const box = textBox(app, "texts");
  const measureSet = button("Measure these texts", () => void measureTexts());
  const [counted, progress] = [h("span", { class: "about", "aria-live": "polite" }), h("span", { class: "about", "aria-live": "polite" })];
  const set = h("details", { class: "more", hidden: !app.source.answers("/api/effects") }, h("summary", {}, "a set of texts: mean and spread"), box.element, h("div", { class: "row" }, measureSet, progress));
  const [over, legend] = [h("p", { class: "about" }), h("div", { class: "legend" })];
  const card = frame({
    title: "Parts",
    picture: () => {
      const shown = effects();
      const table = () => (shown && shown.n_texts > 1 ? spreadTable(shown) : heatTable(effectMatrix()));
      return shown && { name: `effects-${kind()}`, scene: () => heatScene(effectMatrix(), `Effects, ${kind()}`), table, data: () => shown };
    },
    explanation: `Switch off heads (0, 1, …), feed-forwards (ff) or whole layers. The text is then run again without them. "Measure all" switches off each part alone, and shows the effect on its switch. A large effect means that the part matters for this text. The measure is the loss, −log p of a prediction, or a logit; without targets, KL(before ‖ after).${store.state.model?.is_multi_label ? ` ${KL_OF_LABELS}` : ""}`,
    formula: effectFormula(store.state.model),
  }, h("div", { class: "row" }, kinds.element, means.element, measures.element, measure, counted, all), logitFields, set, switches, legend, over, loss);

  const strip = h("div");
  const changes = frame({
    title: "Change per position", explanation: "Log-probability of each token after − before. Orange: less probable. Blue: more probable.",
    picture: () => result && {
      name: "ablation", scene: () => stripScene([{ title: `Change of the log-probability without ${store.state.off}`, items: items() }]),
      data: () => ({ off: partsOff(store.state.off), ...result }),
      table: () => ({
        header: ["position", "token", "before", "after", "change"],
        rows: positionTokens(store.state).map((token, i) => {
          const [before, after] = [result?.before.positions[i]?.log_prob, result?.after.positions[i]?.log_prob];
          return [i, token.text, before ?? null, after ?? null, differenceOf([before, after])];
        }),
      }),
    },
  }, strip);
  const before = h("div");
  const after = h("div");
  const tops = frame({ title: "Most probable tokens" }, h("div", { class: "pair" }, h("div", {}, h("h3", {}, "before"), before), h("div", {}, h("h3", {}, "after"), after)));

  const element = h("div", { class: "panel" }, card.element, changes.element, tops.element);
  const latest = new Latest(app, strip);
  const mapLatest = new Latest(app, switches);
  /** @type {Ablation | null} */
  let result = null;
  /** Effects by `key`: those by 0 and by the mean are both kept. @type {Map<string, Effects>} */
  const measured = new Map();
  /** The set of texts that was measured last; null for the text of the run. @type {string[] | null} */
  let lines = null;

  const kind = () => chosenKind(store.state) ?? "";
  const key = () => JSON.stringify([store.state.mean, ...(lines ?? [store.state.run?.run, asked()])]);
  const effects = () => measured.get(key()) ?? null;
  /** Return the spread of the effect of a part over the texts, with its baseline. @param {string} name */
  const spreadOf = (name) => spreadText(effects()?.beside[partOf(name)], effects()?.n_texts ?? 1);

  /** Return true if the effect of a part over the texts is beyond its baseline. @param {string} name */
  const isBeyond = (name) => effects()?.beside[partOf(name)]?.is_beyond ?? false;

  /** Return the names of the parts of a layer. @param {number} layer */
  function names(layer) {
    const heads = store.state.run?.attention[kind()]?.heads ?? 0;
    const own = Array.from({ length: heads }, (_, head) => `${kind()}.${layer}.${head}`);
    return kind() === "cross" ? own : [...own, `${kind()}.${layer}.ff`, `${kind()}.${layer}.all`];
  }

  const allNames = () => Array.from({ length: store.state.run?.attention[kind()]?.layers ?? 0 }, (_, layer) => names(layer)).flat();
  const partLabels = () => names(0).map((name) => name.split(".")[2]?.replace("all", "layer") ?? "");

  /** @param {string} name */
  function toggle(name) {
    const off = partNames(store.state.off);
    store.set({ off: (off.includes(name) ? off.filter((one) => one !== name) : [...off, name]).join(",") });
  }

  function drawSwitches() {
    const { state } = store;
    const place = state.run?.attention[kind()];
    if (!place) return;
    const off = new Set(partNames(state.off));
    const columns = partLabels();
    const grid = h("div", { class: "switches", role: "grid", "aria-label": "Parts of the model", style: { "--parts": String(columns.length) } },
      h("div", { class: "switch-row", role: "row" }, h("span", { role: "gridcell" }),
        ...columns.map((text) => h("span", { class: "grid-label", role: "columnheader" }, text))));
    for (let layer = 0; layer < place.layers; layer++) {
      grid.append(h("div", { class: "switch-row", role: "row" }, h("span", { class: "grid-label", role: "rowheader" }, layer), ...names(layer).map((name, i) => {
        const isOn = !off.has(name);
        const effect = effectOf(effects(), name);
        const spread = spreadOf(name);
        return h("span", { role: "gridcell" }, h("button", {
          type: "button", class: `switch${isBeyond(name) ? " is-beyond" : ""}`, role: "switch", "aria-checked": String(isOn), title: spread ? `${name}: ${signed(effect)}${spread}` : undefined, tabindex: layer + i === 0 ? 0 : -1, onclick: () => toggle(name),
          "aria-label": `${name.replace(".ff", ".feed-forward").replace(".all", ", whole layer")}${Number.isNaN(effect) ? "" : `, effect ${signed(effect)}${spread}`}`,
          style: painted(isOn && !Number.isNaN(effect) ? colourOf(effect, "diverging", range(), state.dark) : null),
        }, isOn ? (Number.isNaN(effect) ? "on" : signed(effect, 2)) : "off"));
      })));
    }
    arrowKeys(grid, ".switch", () => columns.length);
    refill(switches, grid);
    over.textContent = overText();
    legend.hidden = !effects();
    fill(legend, "Colours, up to the largest effect of a head:", ...divergingLegend(range()[1], state.dark).children, "Larger effects have the colour of the end.");
    all.disabled = !off.size;
  }

  /** Describe the numbers on the switches. */
  function overText() {
    const shown = effects();
    if (!shown) return "";
    const by = `The numbers on the switches: effect of each part when it alone is replaced by ${store.state.mean ? "its mean over the positions" : "0"}`;
    if (lines === null) return store.state.measure && !measures.element.hidden ? `${by}, as the change of this number: ${measureText(store.state, shown)}.` : `${by}.`;
    if (shown.n_texts === 1) return `${by}, on the text of the box.`;
    const nBeyond = allNames().filter(isBeyond).length;
    return `${by}. Means over ${shown.n_texts} texts; ${nBeyond} parts have a frame: they are beyond the baseline. Their effect is larger than the mean of the other parts of their type by more than 3 standard errors.`;
  }

  /** @returns {[number, number]} */
  function range() {
    const heads = allNames().filter((name) => /\d$/.test(name)); // a feed-forward may have a far larger effect
    const values = heads.map((name) => effectOf(effects(), name)).filter((x) => !Number.isNaN(x));
    const largest = Math.max(1e-6, ...values.map(Math.abs));
    return [-largest, largest];
  }

  function load() {
    const { run, off, mean } = store.state;
    const parts = partNames(off);
    if (!run) return;
    result = null;
    store.set({ ablated: null });
    draw();
    if (!parts.length) return latest.cancel();
    const { logit, ...others } = asked();
    void latest.use(app.data.post(`/api/run/${run.run}/ablate`, { off: partsOff(off), mean: Boolean(mean), logit: Boolean(logit), ...others }), (value) => {
      result = value;
      store.set({ ablated: value });
      draw();
    });
  }

  /** Return the tokens with their changes. */
  function items() {
    const { state } = store;
    const both = (result?.after.positions ?? []).map(({ log_prob: is }, i) => [result?.before.positions[i]?.log_prob, is]);
    return changeItems(positionTokens(state), positionSide(state), both, state.dark);
  }

  function draw() {
    tops.element.hidden = !result;
    changes.element.hidden = items().every(({ colour }) => colour === null);
    const count = partNames(store.state.off).length;
    loss.textContent = !result ? "In this run, all parts are on."
      : `${measureText(store.state, result)}: ${fixed(result.before.loss)} → ${fixed(result.after.loss)} ` +
        `(${signed((result.after.loss ?? NaN) - (result.before.loss ?? NaN))}) with ${count} ${count === 1 ? "part" : "parts"} off.`;
    fill(strip, result ? tokenStrip(items(), "Change per position") : null);
    drawTops();
    markTokens(store);
    changes.refresh();
  }

  /** Return the heading of the predictions before and after. @param {Outcome} outcome @param {number} position */
  function headingOf(outcome, position) {
    if (outcome.number !== null) return "Number";
    if (outcome.labels) return "Labels";
    return `${store.state.model?.labels.length ? "Labels" : "Most probable tokens"} ${positionText(store.state, position)}`;
  }

  function drawTops() {
    if (!result) return;
    const position = shownPosition(store.state);
    const read = tokensBefore(store.state, position);
    tops.title.textContent = headingOf(result.after, position);
    for (const [place, outcome] of /** @type {const} */ ([[before, result.before], [after, result.after]])) {
      const best = outcome.labels?.map(({ name, probability }) => /** @type {const} */ ([0, name, probability])) ?? outcome.positions[position]?.top ?? [];
      if (outcome.number !== null) fill(place, h("p", { class: "number" }, fixed(outcome.number, 4)));
      else fill(place, barList(best.map(([, text, p]) => ({ label: labelAfter(read, text), value: p, text: percent(p) }))));
    }
  }

  async function measureAll() {
    const { run } = store.state;
    if (!run) return;
    lines = null;
    await measureBy(withProgress(app, app.data.json(run, "effects", { mean: store.state.mean || undefined, ...asked() }), counted));
  }

  /** Return true if all parts of the model are measured without a click. */
  function isMeasuredAtOnce() {
    const { run } = store.state;
    const isScored = Object.keys(asked()).length > 0 || run?.loss !== null || run.kind === "encoder";
    return isScored && isQuickToSwitch(app);
  }

  async function measureTexts() {
    const request = app.data.post("/api/effects", { model: store.state.model?.id ?? "", lines: box.lines(), mean: Boolean(store.state.mean) });
    lines = box.lines();
    await measureBy(withProgress(app, request, progress));
  }

  /** @param {Promise<Effects>} request */
  async function measureBy(request) {
    const here = key();
    for (const one of [measure, measureSet]) one.disabled = true;
    await mapLatest.use(request, (value) => {
      app.say("");
      measured.set(here, value);
      drawSwitches();
      card.refresh();
    });
    for (const one of [measure, measureSet]) one.disabled = false;
  }

  /** @returns {import("../page/heatmap.js").Matrix} */
  function effectMatrix() {
    const labels = partLabels().map((what) => (/^\d+$/.test(what) ? `head ${what}` : what));
    const values = allNames().map((name) => effectOf(effects(), name));
    const rows = values.length / labels.length;
    return {
      rows, columns: labels.length, values, row_labels: Array.from({ length: rows }, (_, i) => `layer ${i}`), column_labels: labels, row_axis: "layer",
      column_axis: "part", plain_rows: true, plain_columns: true, scale: "diverging", range: range(), dark: store.state.dark, unit: effects()?.measure === "logit" ? "logit" : "nats", cell: [58, 26],
      cell_text: (row, column) => signed(values[row * labels.length + column], 2), describe: () => "",
    };
  }

  return {
    element,
    render(changed) {
      const { state } = store;
      kinds.write();
      means.write(String(state.mean));
      measures.write(state.measure);
      fields.write();
      logitFields.hidden = state.measure !== "logit" || measures.element.hidden;
      const isOther = ["run", "mean", "measure", ...(state.measure ? ["pos"] : []), ...(state.measure === "logit" ? ["answer", "wrong"] : [])].some((name) => changed.has(name));
      if (isOther || ["kind", "off", "dark"].some((name) => changed.has(name))) drawSwitches();
      if (isOther || changed.has("off")) load();
      else if (changed.has("dark")) draw();
      if (isOther && !effects() && isMeasuredAtOnce()) void measureAll();
      if (["hover", "pos"].some((key) => changed.has(key))) drawTops();
    },
  };
}
