/**
 * Attention: the grid of all heads, and the matrix or the lines of one head.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { AttentionPlace, Run } from "../page/types.js"
 * @import { Bytes } from "../page/source.js"
 * @import { Weights } from "../page/lines.js"
 * @import { Effects } from "./ablation.js"
 *
 * @typedef {Record<string, number | null>} HeadScores
 * @typedef {{
 *   name: string, kind: string, layer: number, head: number, score: number | null, uniform: number | null, random: number | null,
 *   random_uniform: number | null, is_found: boolean,
 * }} RankedHead
 * @typedef {Record<string, {heads: HeadScores[][], uniform: HeadScores[]}>} Kinds
 * @typedef {{
 *   names: Record<string, string>, margin: number, ranked: RankedHead[], kinds: Kinds, random: Kinds | null, n_random: [sequences: number, tokens: number] | null,
 * }} Scores
 */

import { Latest, attentionLabels, cellPlaces, chosenKind, isQuickToSwitch, kindChoice, kindsOf, markedCell, withProgress } from "../page/app.js";
import { arrowKeys, button, choice, fill, h, numberOptions, refill, select } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { gridScene, headGrid, thumbnailPicture } from "../page/grid.js";
import { Heatmap } from "../page/heatmap.js";
import { cellOf, columnScene, headColour, layersScene, strongest, windowAround } from "../page/lines.js";
import { markTokens, selectPlace } from "../page/link.js";
import { sceneElement } from "../page/scene.js";
import { answeredPlaces, selectedPosition } from "../page/state.js";
import { fixed, visible } from "../page/text.js";
import { measureQuery, measureText } from "./ablation.js";
import { foundHeads, headAtlas, headTable } from "./atlas.js";
import { headLinks } from "./unit.js";

/** @type {Tab} */
export const attentionTab = { id: "attention", title: "Heads", create: createAttention, exists: (model) => Object.keys(model.attention).length > 0 };

const LINE_WINDOW = 120;
const ABOUT = {
  maps: "One attention map per layer (down) and head (across). In a map, rows are queries and columns are keys. Select a map to open it.",
  lines: "One column per layer. A line leads from a key (left) to a query (right) that attends to it. Its width is the weight, and its colour is the head.",
  table: "One row per head. Patterns: (score − uniform) / (1 − uniform), which is 0 for uniform attention and 1 for a head that does only this. Switched off: change of the measure of the panel Ablation, by default the loss in nats per token, or the predictions of a text without a loss.",
};
const TOKENS = /** @type {[string, string][]} */ ([["0", "token under the pointer"], ["1", "all tokens"]]);
const NAMES = /** @type {Record<string, string>} */ ({ encoder: "encoder", decoder: "decoder", cross: "cross: target to source" });

/** @param {App} app @returns {Panel} */
function createAttention(app) {
  const { store } = app;
  const states = store.state.model?.kind === "recurrent" ? " A query q is a state of the decoder, a key k a state of the encoder." : "";
  const formula = () => store.state.model?.formulas[chosenKind(store.state) ?? ""] ?? "";
  const kinds = kindChoice(store, (kind) => (store.state.model?.kind === "recurrent" ? "target to source" : NAMES[kind] ?? kind));
  const badges = select("badge", [], (badge) => store.set({ badge }));
  const foundPlace = h("div", { class: "found-list" });
  const random = button("Show repeated random tokens", () => app.submitRandom(), { title: "Run random tokens, repeated once, in place of the text: they show the pattern of an induction head" });
  const found = h("div", { class: "found" }, foundPlace, random);
  const gridPlace = h("div", { class: "scroll-x" });
  const looks = choice("All heads as", [["maps", "maps"], ["lines", "lines of all layers"], .../** @type {[string, string][]} */ (states ? [] : [["table", "table of heads"]])], (heads) => store.set({ heads }));
  const ofTokens = choice("Lines of all layers", TOKENS, (all) => store.set({ all: Number(all) }));
  const counted = h("span", { class: "about", "aria-live": "polite" });
  /** The tokens on which the table of heads has patterns. */
  let on = "random";
  const places = choice("Patterns", [["random", "on repeated random tokens"], ["text", "on this text"]], (value) => {
    on = value;
    drawGrid();
  });
  const measure = button("Switch off each head", () => loadEffects(), { title: "This needs one run per part of the model and may take a while" });
  const legend = h("div", { class: "head-legend", role: "group", "aria-label": "Colours of the heads" });
  arrowKeys(legend, "button", () => 0);
  /** The only head whose lines are drawn; undefined for all heads. @type {number | undefined} */
  let onlyHead;
  const gridCard = frame({
    title: "Heads", explanation: `${ABOUT.maps}${states}`,
    formula: formula(), picture: () => {
      const data = headData();
      if (!grid) return null;
      const { kind, thumbnails, scores } = grid;
      const scene = () => (store.state.heads === "lines" ? layersPicture() : gridScene(thumbnails, kind, `Attention weights, ${kind}`, store.state.dark));
      if (data && shownLook() === "table") {
        const { names, rows } = headTable(data.kind, data.scores, data.effects);
        const table = () => ({ header: ["layer.head", ...names], rows: rows.map(({ layer, head, values }) => [`${layer}.${head}`, ...values.map((x) => (Number.isNaN(x) ? null : x))]) });
        return { name: `heads-table-${kind}`, scene, data: table, table };
      }
      const names = Object.keys(scores?.names ?? {});
      return { name: `heads-${kind}`, scene, data: () => scores, table: () => ({
        header: ["layer.head", ...names],
        rows: scores?.kinds[kind]?.heads.flatMap((heads, layer) => heads.map((one, head) => [`${layer}.${head}`, ...names.map((name) => one[name] ?? null)])) ?? [],
      }) };
    },
  }, h("div", { class: "row" }, looks.element, ofTokens.element, places.element, measure, counted), legend, h("div", { class: "grid-and-found" }, gridPlace, found));
  gridCard.tools.prepend(badges.element);

  const headTitle = h("h3");
  const layers = select("layer", [], (layer) => store.set({ layer: Number(layer), lit: null }));
  const strip = h("div", { class: "head-strip", role: "group", "aria-label": "Heads of the layer" });
  arrowKeys(strip, ".thumb", () => 0);
  const views = choice("View", [["matrix", "matrix"], ["lines", "lines"]], (shown) => store.set({ shown }));
  const which = choice("Lines", TOKENS, (all) => store.set({ all: Number(all) }));
  const heat = new Heatmap({
    label: "Attention weights", onhover: (row, column) => store.set(cellPlaces(here(), row, column)),
    onleave: () => store.set({ hover: null, across: null }), onselect: (row, column) => selectPlace(store, cellPlaces(here(), row, column).hover),
  });
  const lines = h("div", { class: "lines-view" });
  const links = h("div", { class: "row" });
  const headFacts = h("p", { class: "about" });
  const headCard = frame({
    title: "Head", explanation: `Row i contains the weights of query token i on all key tokens. They sum to 1. The mask hides grey keys.${states}`,
    formula: formula(), picture: () => {
      if (!weights) return null;
      const { kind, layer, head, rows: nRows, columns: width, values, row_labels: rows, column_labels: columns } = weights;
      const row = (/** @type {number} */ i) => Array.from({ length: width }, (_, j) => Number((values[i * width + j] ?? 0).toFixed(5)));
      return {
        name: `attention-${kind}-${layer}-${head}`, table: () => heat.table(),
        scene: () => (store.state.shown === "lines" ? linesScene() : heat.scene(`${kind}, layer ${layer}, head ${head}`)),
        data: () => ({ kind, layer, head, rows, columns, weights: Array.from({ length: nRows }, (_, i) => row(i)) }),
      };
    },
  }, h("div", { class: "row" }, button("← all heads", () => back(), { title: "Back to the grid (Escape)" }), layers.element, strip),
  h("div", { class: "row" }, views.element, which.element, links), heat.element, lines, headFacts);
  headCard.element.addEventListener("keydown", (event) => {
    if (event.key === "Escape") back();
  });
  headCard.element.querySelector("h2")?.replaceWith(headTitle);
  const element = h("div", { class: "panel" }, kinds.element, gridCard.element, headCard.element);

  const gridLatest = new Latest(app, gridPlace);
  const [scoreLatest, effectLatest] = [new Latest(app, foundPlace), new Latest(app, counted)];
  const headLatest = new Latest(app, headCard.body);
  /** @type {{kind: string, thumbnails: Bytes, scores: Scores | null, run: Run} | null} */
  let grid = null;
  /** Effects of the parts on a run, and the column that sorts the table of heads. @type {{run: Run, key: string, effects: Effects} | null} */
  let known = null;
  let [order, isUp] = ["effect", false];
  /** The run whose effects were asked for. @type {Run | null} */
  let tried = null;
  /** @type {(Weights & {kind: string, layer: number, head: number}) | null} */
  let weights = null;

  const here = () => /** @type {AttentionPlace} */ (store.state.run?.attention[chosenKind(store.state) ?? ""]);

  function back() {
    const { layer, head } = store.state;
    store.set({ layer: -1, head: -1, lit: null });
    const opened = () => (shownLook() === "table" ? [...gridPlace.querySelectorAll("button")].find((one) => one.textContent === `${layer}.${head}`)
      : gridPlace.querySelectorAll("button")[layer * (here()?.heads ?? 1) + head]);
    requestAnimationFrame(() => requestAnimationFrame(() => opened()?.focus()));
  }

  function isOpen() {
    const { layer, head } = store.state;
    const place = here();
    return Boolean(place) && layer >= 0 && head >= 0 && layer < place.layers && head < place.heads;
  }

  function loadGrid() {
    const { run } = store.state;
    const kind = chosenKind(store.state);
    if (!run || !kind) return;
    if ((onlyHead ?? 0) >= here().heads) onlyHead = undefined;
    const thumbnails = app.data.bytes(run, "thumbnails", { kind });
    void gridLatest.use(thumbnails, (value) => {
      grid = { kind, thumbnails: value, scores: grid?.run === run ? grid.scores : null, run };
      drawGrid();
      if (grid.scores) return;
      void scoreLatest.use(app.data.json(run, "scores"), (scores) => {
        if (grid?.run !== run) return;
        grid.scores = scores;
        drawGrid();
      });
    });
  }

  /** Return the query for the measure of the panel Ablation. */
  const measured = () => (app.source.answers("/api/stop") ? measureQuery(store.state) : {});

  /** Load the effect of each part when it alone is off. */
  function loadEffects() {
    const { run } = store.state;
    if (!run) return;
    tried = run;
    const query = measured();
    void effectLatest.use(withProgress(app, app.data.json(run, "effects", query), counted), (effects) => {
      known = { run, key: JSON.stringify(query), effects };
      drawGrid();
    });
  }

  /** Return what the table of heads shows; it is null for attention without scores. */
  function headData() {
    if (!grid?.scores) return null;
    const { kind, scores, run } = grid;
    return { kind, scores: on === "random" && scores.random ? { ...scores, kinds: scores.random } : scores, effects: known?.run === run && known.key === JSON.stringify(measured()) ? known.effects : null };
  }

  /** Return the table of heads. */
  function atlas() {
    const [data, { run, dark }] = [headData(), store.state];
    if (!data || !run) return null;
    measure.hidden = data.effects !== null || !app.source.answers("/effects");
    if (!measure.hidden && tried !== run && isQuickToSwitch(app)) loadEffects();
    places.write(on);
    return headAtlas({ ...data, measure: data.effects ? measureText(store.state, data.effects) : "", order, is_up: isUp, dark, onopen: (layer, head) => store.set({ layer, head, lit: null }), onorder: (name) => {
      [order, isUp] = [name, order === name && !isUp];
      drawGrid();
    } });
  }

  function drawGrid() {
    if (!grid) return;
    const look = shownLook();
    ofTokens.element.hidden = legend.hidden = look !== "lines";
    badges.element.hidden = look !== "maps";
    places.element.hidden = look !== "table";
    measure.hidden = true;
    const about = gridCard.element.querySelector(".about")?.firstChild;
    if (about) about.textContent = `${ABOUT[look]}${states}`;
    if (look === "lines") drawLayers();
    else if (look === "table") refill(gridPlace, atlas());
    else refill(gridPlace, headGrid({ ...grid, state: store.state, onopen: (layer, head) => store.set({ layer, head, lit: null }) }));
    drawFound();
    drawStrip();
    markRow();
    gridCard.refresh();
  }

  /** Return how all heads are shown; the heads of a recurrent model have no table. @returns {keyof typeof ABOUT} */
  function shownLook() {
    const { heads, model } = store.state;
    return heads === "lines" || (heads === "table" && model?.kind !== "recurrent") ? heads : "maps";
  }

  /** Return the scene of the lines of all layers. */
  function layersPicture() {
    const { state } = store;
    if (!grid || !state.run) return null;
    const place = here();
    const { rows, columns } = attentionLabels(state.run, place);
    const [, , nRows = 1, nColumns = 1] = grid.thumbnails.shape;
    const cell = markedCell(state, place);
    const isSelf = place.rows === place.columns;
    const token = cell.row >= 0 ? cell.row : selectedPosition(state);
    const only = !isSelf && cell.row < 0 && cell.column >= 0 ? { column: cellOf(cell.column, nColumns, columns.length) }
      : { row: cellOf(token, nRows, rows.length) };
    const chosen = { ...(state.all ? {} : only), ...(onlyHead === undefined ? {} : { head: onlyHead }) };
    return layersScene(grid.thumbnails, { side: place.rows, labels: rows }, { side: place.columns, labels: columns }, { chosen, dark: state.dark });
  }

  function drawLayers() {
    const scene = layersPicture();
    if (!scene || !grid) return;
    const [, heads = 0, nRows = 0] = grid.thumbnails.shape;
    const isPooled = attentionLabels(grid.run, here()).rows.length > nRows;
    fill(gridPlace, isPooled ? h("p", { class: "about" }, `The text has more than ${nRows} tokens. So each label is the first of several neighbouring tokens, and a line is their largest weight.`) : null, sceneElement(scene));
    refill(legend, ...Array.from({ length: heads }, (_, head) => {
      const one = button(`head ${head}`, () => {
        onlyHead = onlyHead === head ? undefined : head;
        drawGrid();
      }, { class: "quiet", "aria-pressed": String(onlyHead === head), tabindex: head === (onlyHead ?? 0) ? 0 : -1, title: "Show only the lines of this head. Select it again to show all heads." });
      one.prepend(h("span", { class: "head-mark", style: { background: headColour(head, heads, store.state.dark) } }));
      return one;
    }));
    markTokens(store);
  }

  function drawFound() {
    drawFacts();
    const { scores } = grid ?? {};
    const names = Object.keys(scores?.names ?? {});
    badges.setOptions([["best", "clearest pattern"], ...names.map((name) => /** @type {[string, string]} */ ([name, name])), ["none", "no badge"]]);
    badges.list.value = store.state.badge;
    const { model } = store.state;
    random.hidden = !model || model.kind === "recurrent"; // the attention of a recurrent model has no pattern scores
    if (!scores) return fill(foundPlace);
    fill(foundPlace, h("h3", {}, "Heads found"), ...foundHeads(scores, /** @type {Run} */ (grid?.run), (one) => store.set({ kind: one.kind, layer: one.layer, head: one.head, lit: null })));
  }

  /** Write the scores of the open head. */
  function drawFacts() {
    const { layer, head } = store.state;
    const of = grid?.scores?.kinds[grid.kind];
    const shown = Object.entries(of?.heads[layer]?.[head] ?? {}).filter(([, value]) => value !== null);
    headFacts.textContent = shown.length ? `On this text (in parentheses: uniform attention): ${shown.map(([name, value]) => `${name} ${fixed(value, 2)} (${fixed(of?.uniform[layer]?.[name], 2)})`).join(", ")}.` : "";
  }

  function drawStrip() {
    const { layer, head, dark } = store.state;
    if (!grid || !isOpen()) return;
    const picture = thumbnailPicture.bind(null, grid.thumbnails, chosenKind(store.state) ?? "", layer);
    fill(strip, ...Array.from({ length: here().heads }, (_, i) => h("button", {
      type: "button", class: "thumb small", "aria-pressed": String(i === head), tabindex: i === head ? 0 : -1,
      "aria-label": `Head ${i}`, title: `head ${i}`, onclick: () => store.set({ head: i, lit: null }),
    }, h("span", { class: "thumb-picture" }, picture(i, dark)))));
  }

  function loadHead() {
    const { run, layer, head } = store.state;
    const kind = chosenKind(store.state);
    if (!run || !kind || !isOpen()) return;
    const place = here();
    headTitle.textContent = `${kind}, layer ${layer}, head ${head}`;
    fill(links, ...headLinks(app, kind, layer, head, attentionTab.id));
    layers.setOptions(numberOptions(place.layers));
    layers.list.value = String(layer);
    void headLatest.use(app.data.head(run, kind, layer, head), ({ rows, columns, values }) => {
      const labels = attentionLabels(run, place);
      weights = {
        rows, columns, values, row_labels: labels.rows, column_labels: labels.columns, row_side: place.rows,
        column_side: place.columns, first_row: place.first_row ?? 0, kind, layer, head,
      };
      drawHead();
    });
  }

  function drawHead() {
    drawFacts();
    if (!weights) return;
    const { state } = store;
    const { rows, columns, values, row_labels: rowLabels, column_labels: columnLabels } = weights;
    const isMatrix = state.shown !== "lines";
    heat.element.hidden = !isMatrix;
    lines.hidden = isMatrix;
    which.element.hidden = isMatrix;
    if (isMatrix) {
      heat.update({
        rows, columns, values, row_labels: rowLabels, column_labels: columnLabels, row_axis: "query", column_axis: "key",
        scale: "sequential", range: [0, 1], cell_text: (row, column) => (weights?.kind === "decoder" && column > row ? "" : fixed(values[row * columns + column], 2)), dark: state.dark, masked: weights.kind === "decoder" ? (row, column) => column > row : undefined,
        describe: (row, column) => `query ${visible(rowLabels[row] ?? "")} (${row}) → key ${visible(columnLabels[column] ?? "")} (${column}): ` +
          (weights?.kind === "decoder" && column > row ? "hidden by the mask" : `weight ${fixed(values[row * columns + column], 4)}`),
      });
      mark();
    } else drawLines();
    headCard.refresh();
  }

  /** Return the scene of the lines of a head. */
  function linesScene() {
    if (!weights) return null;
    const { state } = store;
    const position = selectedPosition(state);
    const rows = windowAround(weights.rows, position, LINE_WINDOW);
    const columns = windowAround(weights.columns, position * weights.columns / Math.max(1, weights.rows), LINE_WINDOW);
    const cell = markedCell(state, here());
    const isSelf = weights.row_side === weights.column_side;
    const isHovered = cell.row >= 0 || cell.column >= 0;
    const only = state.all ? {} : isHovered ? (isSelf || cell.row >= 0 ? { row: cell.row } : { column: cell.column }) : { row: position - weights.first_row };
    const width = Math.max(320, Math.min(640, lines.clientWidth || 520));
    return columnScene(weights, { width, rows, columns, lines: strongest(weights, { rows, columns, least: state.all ? 0.04 : 0.005, ...only }) });
  }

  function drawLines() {
    const scene = linesScene();
    if (!scene || !weights) return;
    const isCut = weights.rows > LINE_WINDOW || weights.columns > LINE_WINDOW;
    fill(lines, isCut ? h("p", { class: "about" }, `${LINE_WINDOW} tokens around the selected position are drawn.`) : null, sceneElement(scene));
    markTokens(store);
  }

  /** Mark the token under the pointer in the matrix and in the thumbnails. */
  function mark() {
    const { layer, head } = store.state;
    if (weights && isOpen() && weights.kind === chosenKind(store.state) && weights.layer === layer && weights.head === head) {
      const cell = markedCell(store.state, here());
      heat.mark(cell.row, cell.column, answeredPlaces(store.state));
    }
  }

  function markRow() {
    const place = here();
    if (!place || !grid) return;
    const { row, column } = markedCell(store.state, place);
    const { rows, columns } = attentionLabels(/** @type {Run} */ (store.state.run), place);
    gridPlace.style.setProperty("--row", row < 0 ? "-1" : String((row + 0.5) / rows.length));
    gridPlace.style.setProperty("--column", column < 0 ? "-1" : String((column + 0.5) / columns.length));
  }

  return {
    element,
    render(changed) {
      const { state } = store;
      if (changed.has("run") && grid?.run !== state.run) weights = null;
      kinds.write();
      looks.write(shownLook());
      ofTokens.write(String(state.all));
      views.write(state.shown === "lines" ? "lines" : "matrix");
      which.write(String(state.all));
      badges.list.value = state.badge;
      for (const place of element.querySelectorAll(".formula")) place.textContent = formula();
      gridCard.element.hidden = isOpen();
      headCard.element.hidden = !isOpen();
      if (!kindsOf(state).length) return fill(gridPlace, h("p", { class: "empty" }, "The model has no attention weights."));
      if (["run", "kind"].some((key) => changed.has(key))) loadGrid();
      else if (["badge", "dark", "heads", "all", "measure", "answer", "wrong"].some((key) => changed.has(key)) || (changed.has("pos") && state.heads === "lines")) drawGrid();
      if (["run", "kind", "layer", "head", "panel"].some((key) => changed.has(key))) {
        loadHead();
        drawStrip();
      } else if (["shown", "all", "dark", "size"].some((key) => changed.has(key)) || (changed.has("pos") && state.shown === "lines")) drawHead();
      if (["hover", "across"].some((key) => changed.has(key))) {
        mark();
        markRow();
        if (isOpen() && state.shown === "lines" && !state.all) drawLines();
        if (!isOpen() && state.heads === "lines" && !state.all) drawLayers();
      }
    },
  };
}
