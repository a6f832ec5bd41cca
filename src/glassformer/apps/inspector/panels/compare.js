/**
 * Comparison of two checkpoints on the same tokens: losses, predictions and attention.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Model, Run } from "../page/types.js"
 */

import { Latest, attentionLabels, cellPlaces, chosenKind, kindChoice, markedCell } from "../page/app.js";
import { barList, barsScene } from "../page/charts.js";
import { button, fill, h, keepHeight, refill, writeField } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { thumbGrid } from "../page/grid.js";
import { Heatmap, pixelImage } from "../page/heatmap.js";
import { labelAfter } from "../page/letters.js";
import { markTokens } from "../page/link.js";
import { mainSide, mainTokens, positionText, shownPosition, tokensBefore } from "../page/state.js";
import { softmax } from "../page/sampling.js";
import { floats } from "../page/source.js";
import { stripScene, tokenStrip } from "../page/strip.js";
import { fixed, percent, signed, visible } from "../page/text.js";
import { changeItems } from "./ablation.js";
import { shownSides } from "./tokens.js";

/** @type {Tab} */
export const compareTab = { id: "compare", title: "Compare", create: createCompare, exists: () => true, route: "/api/compare" };

/**
 * Return b − a.
 * @param {ArrayLike<number>} a
 * @param {ArrayLike<number>} b
 */
export function difference(a, b) {
  return Float32Array.from(a, (x, i) => (b[i] ?? 0) - x);
}

/** Return the range of colours of differences, from −m to m for the largest size m. @param {Float32Array} values @returns {[number, number]} */
function rangeOf(values) {
  const largest = values.reduce((most, x) => Math.max(most, Math.abs(x)), 1e-6);
  return [-largest, largest];
}

/** @param {App} app @returns {Panel} */
function createCompare(app) {
  const { store } = app;
  const steps = h("input", {
    type: "range", min: 0, step: 1, "aria-label": "checkpoint", oninput: () => writeStep(), onchange: () => store.set({ step: stepOf() ?? -1, folder: "" }),
  });
  const stepText = h("output");
  const folder = h("input", { type: "text", placeholder: "for example runs/other", spellcheck: "false",
    onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") loadFolder(); } });
  const facts = h("p", { class: "about" });
  const stepRow = h("label", { class: "slider" }, h("span", {}, "checkpoint"), steps, stepText);
  const card = frame({
    title: "Second model", explanation: "Choose a checkpoint of this run, or the folder of another model. Both models run on the same tokens.",
  }, stepRow, h("div", { class: "row folder" }, h("label", { class: "field wide" }, h("span", {}, "folder of another model with the same vocabulary"), folder), button("Open", () => loadFolder())), facts);

  const strip = h("div");
  const losses = frame({
    title: "Difference per token", explanation: "Log-probability of the second model − first. Blue: the second model is better. Orange: worse.",
    picture: () => {
      const { run, other_run: second } = store.state;
      const sides = shownSides(store.state).map(([side]) => side);
      return run && second && {
        name: "compare-losses", scene: () => stripScene(sides.map((side) => ({ title: "second − first", items: items(side) }))),
        data: () => ({ first: run.loss, second: second.loss }),
        table: () => ({
          header: ["side", "position", "token", "first", "second"],
          rows: sides.flatMap((side) => run[side].map((token, i) => [side, i, token.text, token.log_prob, second[side][i]?.log_prob ?? null])),
        }),
      };
    },
  }, strip);
  const bars = h("div");
  const next = frame({
    title: "Predictions", explanation: "Bar: second model. Outline: first model.",
    picture: () => (pairs().length ? {
      name: "compare-predictions", scene: () => barsScene(pairs(), "Bar: second model. Outline: first model."), data: pairs,
      table: () => ({ header: ["token", "first", "second"], rows: pairs().map(({ label, value, before }) => [label, before, value]) }),
    } : null),
  }, bars);

  const kinds = kindChoice(store);
  const [grid, which] = [h("div", { class: "scroll-x" }), h("h3")];
  const heat = new Heatmap({
    label: "Difference of the attention weights", onhover: (row, column) => store.set(cellPlaces(here(), row, column)),
    onleave: () => store.set({ hover: null, across: null }),
  });
  const attention = frame({
    title: "Attention", explanation: "Weights of the second model − first. Orange: less. Blue: more. The colours end at the largest difference. \"two pages\", at the top, shows both models side by side.",
    picture: () => weights && {
      name: "compare-attention", scene: () => heat.scene("Attention, second − first"), table: () => heat.table(), data: () => heat.table(),
    },
  }, h("div", { class: "row" }, kinds.element), grid, which, heat.element);
  const element = h("div", { class: "panel" }, card.element, losses.element, next.element, attention.element);
  const latest = new Latest(app, card.body);
  const gridLatest = new Latest(app, grid);
  const barsLatest = new Latest(app, bars);
  const headLatest = new Latest(app, heat.element);
  /** @type {{rows: number, columns: number, first: Float32Array, second: Float32Array} | null} */
  let weights = null;
  /** @type {{shape: number[], values: Float32Array} | null} second − first */
  let thumbnails = null;
  /** @type {{key: string, first: Float64Array, second: Float64Array} | null} probabilities at a position */
  let loaded = null;

  const here = () => /** @type {import("../page/types.js").AttentionPlace} */ (store.state.run?.attention[chosenKind(store.state) ?? ""]);

  const checkpoints = () => store.state.model?.checkpoints ?? [];
  /** Return true if the run has a checkpoint of another step than the open model. */
  const hasChoice = () => checkpoints().some((step) => step !== store.state.model?.step);

  const stepOf = () => checkpoints()[Number(steps.value)];
  const writeStep = () => { stepText.textContent = String(stepOf() ?? ""); };

  /** If nothing is chosen, choose the checkpoint before the one of the page, or else the next one. */
  function chooseOther() {
    const { step, folder: path, model } = store.state;
    if (step >= 0 || path || !hasChoice()) return;
    const others = checkpoints().filter((one) => one !== model?.step);
    store.set({ step: others.filter((one) => one < (model?.step ?? 0)).at(-1) ?? others[0] ?? -1 });
  }

  function loadFolder() {
    if (folder.value.trim()) store.set({ folder: folder.value.trim(), step: -1 });
  }

  /** Open the second model and run the same tokens. */
  function load() {
    const { run, step, folder: path } = store.state;
    if (!run || (step < 0 && !path)) return drawAll();
    void latest.use(opened(run, path ? { folder: path } : { step }), ({ model, result }) => {
      if (store.state.run === run) store.set({ other: model, other_run: result });
    });
  }

  /** @param {Run} run @param {{folder: string} | {step: number}} which @returns {Promise<{model: Model, result: Run}>} */
  async function opened(run, which) {
    const ids = run[mainSide(store.state)].map((token) => token.id);
    const body = run.written.length ? { source_ids: run.source.map((token) => token.id), ids } : { ids };
    const model = await app.data.once(`compare ${run.model} ${JSON.stringify(which)}`, () => app.source.post("/api/compare", { first: run.model, ...which }));
    return { model, result: await app.source.post("/api/run", { ...body, model: model.id }) };
  }

  function drawAll() {
    const { run, other, other_run: second } = store.state;
    losses.element.hidden = attention.element.hidden = !second;
    next.element.hidden = !second || run?.number !== null;
    if (!run || !second || !other) {
      facts.textContent = hasChoice() ? "The second model is being opened."
        : "The run has no other checkpoint to compare with: give the folder of another model.";
      return;
    }
    const isSame = other.step === store.state.model?.step && other.folder === store.state.model?.folder;
    const name = `${other.name}, step ${other.step ?? "–"}`;
    facts.textContent = isSame ? `Both models are the checkpoint of step ${other.step ?? "–"}, so all differences are 0: move the slider to another checkpoint.` : run.number !== null ? `${name}: number ${fixed(run.number, 4)} (first), ${fixed(second.number, 4)} (second).`
      : run.loss === null ? `${name}.` : `${name}: loss ${fixed(run.loss)} (first), ${fixed(second.loss)} (second), ` +
      `difference ${signed((second.loss ?? NaN) - run.loss)} nats per token.`;
    losses.element.hidden = !shownSides(store.state).some(([side]) => items(side).some((item) => item.colour));
    fill(strip, ...shownSides(store.state).map(([side]) => (items(side).some((item) => item.colour) ? tokenStrip(items(side), "Difference per token") : null)));
    drawBars();
    markTokens(store);
    losses.refresh();
  }

  /** @param {import("../page/types.js").Side} side */
  function items(side) {
    const { run, other_run: second, dark } = store.state;
    return changeItems(run?.[side] ?? [], side, (run?.[side] ?? []).map(({ log_prob: was }, i) => [was, second?.[side][i]?.log_prob]), dark);
  }

  function pairs() {
    const { state } = store;
    if (state.run?.labels) {
      const other = new Map((state.other_run?.labels ?? []).map(({ name, probability }) => [name, probability]));
      return state.run.labels.map(({ name, probability }) => bar(name, other.get(name), probability));
    }
    const position = shownPosition(state);
    const [first, second] = [mainTokens(state)[position]?.top ?? [], state.other_run?.[mainSide(state)][position]?.top ?? []];
    const before = tokensBefore(state, position);
    const texts = new Map([...first, ...second].map(([id, text]) => [id, text]));
    const of = (/** @type {Float64Array | undefined} */ all, /** @type {typeof first} */ top, /** @type {number} */ id) =>
      all?.[id] ?? top.find(([one]) => one === id)?.[2]; // until all probabilities are loaded, those of the best tokens
    const now = loaded?.key === keyOf(position) ? loaded : null;
    return [...texts].map(([id, text]) => bar(labelAfter(before, text), of(now?.second, second, id), of(now?.first, first, id))).sort((a, b) => b.value + b.before - a.value - a.before).slice(0, 12);
  }

  /** @param {string} label @param {number | undefined} second probability @param {number | undefined} first */
  function bar(label, second, first) {
    const text = (/** @type {number | undefined} */ p) => (p === undefined ? "…" : percent(p));
    return { label, value: second ?? 0, before: first ?? 0, text: text(second), title: `first ${text(first)}, second ${text(second)}` };
  }

  const keyOf = (/** @type {number} */ position) => `${store.state.run?.run} ${store.state.other_run?.run} ${position}`;

  /** Load the probabilities of all tokens at the position. */
  function loadBars() {
    const { run, other_run: second } = store.state;
    const position = shownPosition(store.state);
    const key = keyOf(position);
    if (!run || !second || run.labels || run.number !== null || loaded?.key === key || !mainTokens(store.state)[position]?.top.length) return;
    const both = Promise.all([run, second].map((one) => app.data.bytes(one, "logits", { position })));
    void barsLatest.use(both, ([a, b]) => {
      if (!a || !b) return;
      loaded = { key, first: softmax(floats(a.buffer)), second: softmax(floats(b.buffer)) };
      if (keyOf(shownPosition(store.state)) === key) drawBars();
    });
  }

  function drawBars() {
    next.title.textContent = store.state.run?.labels ? "Predictions" : `Predictions ${positionText(store.state, shownPosition(store.state))}`;
    fill(bars, barList(pairs()));
    keepHeight(bars);
    next.refresh();
  }

  function loadGrid() {
    const { run, other_run: second } = store.state;
    const kind = chosenKind(store.state);
    const place = here();
    if (!run || !second || !kind || !place) return;
    const other = second.attention[kind];
    if (!other || other.layers !== place.layers || other.heads !== place.heads) {
      thumbnails = null;
      fill(grid, h("p", { class: "empty" }, "The two models have different numbers of layers or heads."));
      return;
    }
    const both = Promise.all([run, second].map((one) => app.data.bytes(one, "thumbnails", { kind })));
    void gridLatest.use(both, ([a, b]) => {
      if (!a || !b) return;
      thumbnails = { shape: a.shape, values: difference(new Uint8Array(a.buffer), new Uint8Array(b.buffer)).map((x) => x / 255) };
      drawGrid();
    });
  }

  function drawGrid() {
    if (!thumbnails) return;
    const { state } = store;
    const { shape: [nLayers = 0, nHeads = 0, rows = 0, columns = 0], values } = thumbnails;
    const look = /** @type {const} */ ({ scale: "diverging", range: rangeOf(values), dark: state.dark });
    refill(grid, thumbGrid([nLayers, nHeads], { label: "Heads", onopen: (layer, head) => store.set({ layer, head }), content: (layer, head) => {
      const from = (layer * nHeads + head) * rows * columns;
      return {
        picture: pixelImage(values.subarray(from, from + rows * columns), rows, columns, look),
        attributes: { title: `layer ${layer}, head ${head}`, "aria-pressed": String(layer === state.layer && head === state.head) },
      };
    } }));
  }

  function loadHead() {
    const { run, other_run: second, layer, head } = store.state;
    const kind = chosenKind(store.state);
    const place = here();
    if (!run || !second || !kind || !place) return;
    const [l, k] = [Math.min(place.layers - 1, Math.max(0, layer)), Math.min(place.heads - 1, Math.max(0, head))];
    which.textContent = `Layer ${l}, head ${k}`;
    if (!second.attention[kind] || l >= (second.attention[kind]?.layers ?? 0) || k >= (second.attention[kind]?.heads ?? 0)) return;
    void headLatest.use(Promise.all([app.data.head(run, kind, l, k), app.data.head(second, kind, l, k)]), ([a, b]) => {
      weights = { rows: a.rows, columns: a.columns, first: a.values, second: b.values };
      drawHead();
    });
  }

  function drawHead() {
    const { run } = store.state;
    const place = here();
    if (!weights || !run || !place) return;
    const { rows, columns, first, second } = weights;
    const labels = attentionLabels(run, place);
    const values = difference(first, second);
    heat.update({
      rows, columns, values, row_labels: labels.rows, column_labels: labels.columns, row_axis: "query", column_axis: "key",
      scale: "diverging", range: rangeOf(values), dark: store.state.dark,
      describe: (row, column) => `query ${visible(labels.rows[row] ?? "")} (${row}) → key ${visible(labels.columns[column] ?? "")} (${column}): ` +
        `${fixed(first[row * columns + column], 4)} (first), ${fixed(second[row * columns + column], 4)} (second)`,
    });
    attention.refresh();
  }

  return {
    element,
    render(changed) {
      const { state } = store;
      kinds.write();
      stepRow.hidden = !hasChoice();
      steps.max = String(Math.max(0, checkpoints().length - 1));
      const index = checkpoints().indexOf(state.step < 0 ? state.model?.step ?? -1 : state.step);
      if ((state.step >= 0 || changed.has("panel")) && index >= 0) steps.value = String(index);
      if (changed.has("folder") || changed.has("panel")) writeField(folder, state.folder);
      writeStep();
      if (changed.has("panel")) chooseOther();
      if (["run", "step", "folder"].some((key) => changed.has(key))) load();
      if (["other_run", "dark"].some((key) => changed.has(key))) drawAll();
      if (["other_run", "kind"].some((key) => changed.has(key))) loadGrid();
      if (["other_run", "kind", "layer", "head"].some((key) => changed.has(key))) loadHead();
      if (["layer", "head", "dark"].some((key) => changed.has(key))) drawGrid();
      if (changed.has("dark")) drawHead();
      if (["hover", "pos"].some((key) => changed.has(key)) && state.other_run) drawBars();
      if (["other_run", "pos", "hover"].some((key) => changed.has(key))) loadBars();
      if (["hover", "across"].some((key) => changed.has(key)) && here()) {
        const cell = markedCell(state, here());
        heat.mark(cell.row, cell.column);
      }
    },
  };
}
