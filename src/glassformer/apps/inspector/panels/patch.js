/**
 * Activation patching: copy the residual stream or a head of a clean run into a corrupted run, one layer and position
 * at a time. An encoder-decoder has two sources in place of the texts, and one map per stack.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Table } from "../page/types.js"
 * @import { Beside } from "./texts.js"
 *
 * @typedef {{
 *   model: string, stack: string, parts: string, n_texts: number, tokens_clean: string[], tokens_corrupted: string[], columns: string[],
 *   target: string[] | null, layers: string[], map: number[][], estimate: number[][] | null, correlation: number | null, beside: Beside[][], clean: number, corrupted: number, answer: string, wrong: string, unknown: string,
 * }} Patching
 * `estimate` and `correlation` are null if the source computes no gradients.
 */

import { Latest, isQuick, withProgress } from "../page/app.js";
import { button, choice, fill, grow, h, sendsOn, writeField } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { Heatmap } from "../page/heatmap.js";
import { isPair } from "../page/input.js";
import { mainTokens } from "../page/state.js";
import { fixed, visible } from "../page/text.js";
import { spreadCells, spreadHeader, spreadText, textBox } from "./texts.js";

/** @type {Tab} */
export const patchTab = { id: "patch", title: "Patching", create: createPatch, exists: (model) => model.kind !== "recurrent" && model.has_head_over_tokens, route: "/api/patch", needs_no_run: true };

/** Return the shares over a set of pairs as a table, with their spread and their baseline. @param {Patching} result @returns {Table} */
function spreadTable({ layers, columns, beside }) {
  const rows = beside.flatMap((row, i) => row.map((one, j) => [`${layers[i]}, ${visible(columns[j] ?? "")}`, ...spreadCells(one)]));
  return { header: ["place", "mean of the exact shares", ...spreadHeader.slice(1)], rows };
}

/** @param {App} app @returns {Panel} */
function createPatch(app) {
  const { store } = app;
  const { model } = store.state; // for another model, a new panel is created
  const hasPair = isPair(model);
  /** @param {"clean" | "corrupted" | "answer" | "wrong" | "prefix"} key @param {string} label @param {string} placeholder */
  const field = (key, label, placeholder) => {
    const input = h("textarea", { rows: 1, placeholder, spellcheck: "false", title: "Press Enter to patch, Shift+Enter for a new line.", oninput: () => drawStart(),
      onchange: () => store.set({ [key]: input.value }), onkeydown: sendsOn("Enter", () => submit()) });
    return { key, input, element: h("label", { class: "field wide" }, h("span", {}, label), input) };
  };
  const what = hasPair ? "source" : "text";
  const example = hasPair ? "" : model?.is_causal ? ": a text that the model continues correctly" : ": a text with [MASK] that the model fills correctly";
  const fields = [ // the later ones are optional
    field("clean", `clean ${what}${example}`, `${what} before the change`),
    field("corrupted", `corrupted ${what}: the clean ${what} with one changed word and the same number of tokens`, "type the changed text"),
    field("answer", `answer (by default: the prediction for the clean ${what})`, "optional"),
    field("wrong", `wrong answer (by default: the prediction for the corrupted ${what})`, "optional"),
    ...(hasPair ? [field("prefix", "target prefix (by default: the model's output, until the two runs differ)", "optional")] : []),
  ];
  const [cleanBox, corruptedBox] = /** @type {[{input: HTMLTextAreaElement}, {input: HTMLTextAreaElement}]} */ (/** @type {unknown} */ (fields));
  const start = button("Patch", () => submit(), { class: "primary" });
  const stacks = choice("Stack", [["encoder", "encoder"], ["decoder", "decoder"]], (stack) => {
    store.set({ stack });
    again();
  });
  stacks.element.hidden = !hasPair;
  let parts = "positions";
  const kinds = choice("Patched parts", [["positions", "residual stream"], ["heads", "heads"]], (value) => {
    parts = value;
    kinds.write(parts);
    again();
  });
  let method = "exact";
  const methods = choice("Method", [["exact", "exact"], ["estimate", "estimate by the gradient"]], (value) => {
    method = value;
    methods.write(method);
    draw();
  });
  methods.element.hidden = !app.source.hasGradients;
  const withoutGradients = h("p", { class: "about", hidden: app.source.hasGradients }, 'The estimate by the gradient (attribution patching) needs "glassformer inspect DIR": this file computes no gradients.');
  const moreClean = textBox(app, `more clean ${what}s`);
  const moreCorrupted = textBox(app, `more corrupted ${what}s: line i belongs to line i of the clean ${what}s; an answer may follow its ${what} after a tab`);
  const more = h("details", { class: "more" }, h("summary", {}, `answers${hasPair ? ", target prefix" : ""}, and more pairs: means over a set`), h("div", { class: "fields" }, ...fields.slice(2).map(({ element }) => element)), h("div", { class: "pair" }, moreClean.element, moreCorrupted.element));
  const progress = h("span", { class: "about", "aria-live": "polite" });
  const heat = new Heatmap({ label: "Effect of patching" });
  const facts = h("p", { class: "detail" });
  const unknown = h("p", { class: "unknown" });
  const card = frame({
    title: "Patching",
    picture: () => result && {
      name: "patching", scene: () => heat.scene("Patching"), data: () => result,
      table: () => (result && result.n_texts > 1 ? spreadTable(result) : heat.table()),
    },
    explanation: `Shows which layers and positions cause the difference between two ${what}s. 0: same prediction as with the corrupted ${what}. 1: same prediction as with the clean ${what}.`,
    formula: "share = (patched − corrupted) / (clean − corrupted), of logit(answer) − logit(wrong)" + (app.source.hasGradients ? "; estimate = gradient · (clean − corrupted)" : ""),
  }, h("div", { class: "fields" }, ...fields.slice(0, 2).map(({ element }) => element)), more, h("div", { class: "row" }, start, kinds.element, stacks.element, methods.element, progress), withoutGradients, facts, unknown, heat.element);
  const latest = new Latest(app, card.body);
  /** @type {Patching | null} */
  let result = null;
  /** Texts of the fields at the request of `result`. */
  let patched = "";
  heat.element.hidden = true;
  /** Why no second text was found; empty if it was not sought. */
  let missing = "";

  const texts = () => JSON.stringify(fields.map(({ input }) => input.value));

  /** Enable the button if both texts are given and differ. */
  function drawStart() {
    const [clean, corrupted] = [cleanBox.input.value, corruptedBox.input.value];
    start.disabled = !clean || !corrupted || clean === corrupted;
    for (const { input } of fields) grow(input);
    for (const one of [heat.element, facts]) one.classList.toggle("is-former", result !== null && (texts() !== patched || result.parts !== parts || (hasPair && result.stack !== chosenStack())));
    start.title = start.disabled ? `Change a word of the clean ${what} in the second box first` : "";
    if (!result) facts.textContent = start.disabled ? missing || `${start.title}.` : "";
  }

  function submit() {
    if (start.disabled) return;
    store.set(Object.fromEntries(fields.map(({ key, input }) => [key, input.value])));
    load();
  }

  /** Patch again after another choice if that is quick; otherwise, the button does it. */
  function again() {
    if (result && isQuickNow()) load();
    else drawStart();
  }

  /** The texts that were written into the fields without a click, and the text for which a pair was asked. */
  const offered = { clean: "", corrupted: "", asked: "" };

  /** Return true if the fields have what was offered, or nothing: the user has written nothing there. */
  const isUntouched = () => [cleanBox, corruptedBox].every(({ input }, i) => input.value === (i ? offered.corrupted : offered.clean) || !input.value);

  /** Propose a pair of texts: the given text, and the same with one changed word. Patch it at once if that is quick. @param {string} given */
  function begin(given) {
    if (!isUntouched()) return;
    if (given !== offered.clean) {
      Object.assign(offered, { clean: given, corrupted: "" });
      missing = "";
      [cleanBox.input.value, corruptedBox.input.value] = [given, ""];
    }
    const n = mainTokens(store.state).length; // 0 before the first run
    if (offered.asked === given || !app.source.answers("/api/changed") || !n || !isQuick(app, 1, n)) return; // the first tries, of two runs each, are enough in most texts
    offered.asked = given;
    const request = app.source.post("/api/changed", { text: given, model: model?.id ?? "" });
    void latest.use(withProgress(app, request, progress), ({ changed, n_tried: nTried }) => {
      if (!changed && offered.clean === given) {
        missing = `No pair is proposed: ${nTried} ${what}s with one changed word were tried, and none of them has the same number of tokens and another prediction. Write one in the second box: change what the prediction depends on.`;
        drawStart();
      }
      const isShown = card.element.isConnected && store.state.model === model && store.state.panel === patchTab.id;
      if (!changed || !isShown || !isUntouched() || offered.clean !== given || fields.some(({ input }) => input === document.activeElement)) return;
      corruptedBox.input.value = offered.corrupted = changed;
      drawStart();
      if (isQuickNow()) load();
    });
  }

  /** Return true if the shown parts of the text are patched without a click: each layer and position, or each head. */
  function isQuickNow() {
    const n = mainTokens(store.state).length;
    const nRuns = Object.values(store.state.model?.attention ?? {}).reduce((sum, { layers, heads }) => sum + (parts === "heads" ? layers * heads : (layers + 1) * n), 0);
    return n > 0 && isQuick(app, nRuns, n); // before the first run, the number of tokens is unknown
  }

  const chosenStack = () => (store.state.stack === "decoder" ? "decoder" : "encoder");

  function load() {
    const asked = texts();
    const [clean, corrupted, answer, wrong, prefix] = fields.map(({ input }) => input.value);
    const body = {
      model: store.state.model?.id ?? "", clean, corrupted, answer: answer || null, wrong: wrong || null, parts, more_clean: moreClean.lines(), more_corrupted: moreCorrupted.lines(),
      ...(hasPair ? { target: prefix || null, stack: chosenStack() } : {}),
    };
    void latest.use(withProgress(app, app.data.post("/api/patch", body), progress), (value) => {
      app.say("");
      result = value;
      patched = asked;
      draw();
      drawStart();
    });
  }

  function draw() {
    heat.element.hidden = !result;
    fill(unknown, result?.unknown ?? "");
    if (!result) return;
    const { layers, columns: labels, beside, n_texts: nTexts } = result;
    const columns = labels.length;
    const isOfHeads = result.parts === "heads";
    facts.textContent = (nTexts > 1 ? `means over ${nTexts} pairs: ` : "") + `difference of the logits ${fixed(result.clean, 2)} (clean), ${fixed(result.corrupted, 2)} (corrupted)` +
      `${nTexts > 1 ? "; of the first pair:" : ";"} answer ${visible(result.answer)}, wrong answer ${visible(result.wrong)}` +
      (result.target ? `; predicted after ${result.target.map(visible).join(" ")}` : "") + (result.estimate ? `; rank correlation of exact and estimate ${fixed(result.correlation, 2)}, largest difference ${fixed(Math.max(...result.map.flat().map((x, i) => Math.abs(x - (result?.estimate?.flat()[i] ?? x)))), 2)}` : "");
    const { map, estimate } = result;
    const [shown, other] = method === "estimate" && estimate ? [estimate, map] : [map, estimate];
    const values = shown.flat();
    const others = other?.flat();
    heat.update({
      rows: layers.length, columns, values, row_labels: layers, column_labels: labels, row_axis: "layer", plain_rows: true, plain_columns: isOfHeads,
      column_axis: isOfHeads ? "head" : hasPair ? `position in the ${result.stack}` : "position",
      scale: "diverging", range: [-1, 1], dark: store.state.dark, cell: [44, 24], cell_text: (row, column) => fixed(values[row * columns + column], 2),
      describe: (row, column) => `${layers[row]}, ${isOfHeads ? "" : `position ${column} `}${visible(labels[column] ?? "")}: ${fixed(values[row * columns + column], 3)} (${method})` +
        `${others ? `, ${fixed(others[row * columns + column], 3)} (${method === "exact" ? "estimate" : "exact"})` : ""}${nTexts > 1 ? `; exact shares${spreadText(beside[row]?.[column], nTexts)}` : ""}`,
    });
    card.refresh();
  }

  return {
    element: h("div", { class: "panel" }, card.element),
    render(changed) {
      const { state } = store;
      for (const { key, input } of fields) if (changed.has(key) || (changed.has("panel") && state[key])) writeField(input, state[key]);
      if (changed.has("panel") && !result && state.clean && state.corrupted && state.clean !== state.corrupted) load();
      if (fields.slice(2).some(({ input }) => input.value)) more.open = true;
      stacks.write(chosenStack());
      kinds.write(parts);
      methods.write(method);
      const given = hasPair ? state.source : state.text;
      if ((changed.has("panel") || changed.has("run")) && !state.clean && given) begin(given);
      drawStart();
      if (changed.has("dark")) draw();
    },
  };
}
