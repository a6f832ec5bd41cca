/**
 * Alignment: attention weights between the target and the source, as lines and as a matrix.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Picture, Scene, Side } from "../page/types.js"
 * @import { Weights } from "../page/lines.js"
 *
 * @typedef {{rows: Side, columns: Side, weights: number[][], links: [number, number, number][]}} Alignment
 */

import { Latest, cellPlaces, markedCell } from "../page/app.js";
import { fill, h, isLecture, numberOptions, select } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { Heatmap } from "../page/heatmap.js";
import { labelsOf } from "../page/letters.js";
import { ALIGNED, ALIGNMENT_ABOUT, alignmentScene } from "../page/lines.js";
import { markTokens, selectPlace } from "../page/link.js";
import { sceneElement } from "../page/scene.js";
import { answeredPlaces, selectedPosition } from "../page/state.js";
import { fixed, visible } from "../page/text.js";

/** @type {Tab} */
export const alignmentTab = { id: "alignment", title: "Alignment", create: createAlignment, exists: (model) => "cross" in model.attention, route: "/alignment" };

/** Factor of the lines in a lecture. */
const LARGER = 1.4;

/** @param {App} app @returns {Panel} */
function createAlignment(app) {
  const { store } = app;
  const layers = select("layer", [], (layer) => store.set({ align_layer: Number(layer) }));
  const heads = select("head", [], (head) => store.set({ align_head: Number(head) }));
  const choices = h("div", { class: "row" }, layers.element, heads.element);
  const place = h("div", { class: "scroll-x" });
  const note = h("p", { class: "about" });
  const lines = frame({
    title: "Alignment", explanation: ALIGNMENT_ABOUT,
    formula: store.state.model?.formulas.cross ?? "", picture: () => picture("alignment-lines", scene),
  }, choices, place, note);
  const heat = new Heatmap({
    label: "Alignment weights", onleave: () => store.set({ hover: null, across: null }),
    onhover: (row, column) => store.set(cellPlaces(sides(), row, column)),
    onselect: (row, column) => selectPlace(store, cellPlaces(sides(), row, column).hover),
  });
  const matrix = frame({
    title: "Alignment matrix", explanation: "Rows are target tokens, and columns are source tokens. Each row sums to 1.",
    picture: () => picture("alignment-matrix", () => heat.scene("Alignment")),
  }, heat.element);
  const element = h("div", { class: "panel" }, lines.element, matrix.element);
  const latest = new Latest(app, element);
  /** @type {Weights | null} */
  let weights = null;
  /** @type {Alignment | null} */
  let found = null;

  const sides = () => ({ rows: found?.rows ?? "written", columns: found?.columns ?? "source" });

  function load() {
    const { run, model, align_layer: layer, align_head: head } = store.state;
    const size = model?.attention.cross;
    if (!run || !size) return;
    layers.setOptions([["-1", "default"], ...numberOptions(size.layers)]);
    heads.setOptions([["-1", "mean of all"], ...numberOptions(size.heads)]);
    layers.list.value = String(layer);
    heads.list.value = String(head);
    choices.hidden = size.layers * size.heads === 1;
    const query = { layer: layer < 0 ? undefined : layer, head: head < 0 ? undefined : head };
    void latest.use(app.data.json(run, "alignment", query), (value) => {
      found = /** @type {Alignment} */ (value);
      weights = {
        rows: value.weights.length, columns: value.weights[0]?.length ?? 0, values: Float32Array.from(value.weights.flat()),
        row_labels: labelsOf(run[found.rows]), column_labels: labelsOf(run[found.columns]),
        row_side: found.rows, column_side: found.columns, first_row: 0,
      };
      draw();
    });
  }

  const scene = () => weights && alignmentScene(weights, Math.max(0, selectedPosition(store.state)), place.clientWidth / (isLecture() ? LARGER : 1));

  function draw() {
    const picture = scene();
    if (!weights || !picture) return;
    const { rows, columns, values, row_labels: rowLabels, column_labels: columnLabels } = weights;
    const drawn = sceneElement(picture);
    if (isLecture()) drawn.style.zoom = String(LARGER);
    fill(place, drawn);
    note.textContent = rows > ALIGNED || columns > ALIGNED ? `${ALIGNED} tokens around the selected position are drawn.` : "";
    heat.update({
      rows, columns, values, row_labels: rowLabels, column_labels: columnLabels, row_axis: "target", column_axis: "source",
      scale: "sequential", range: [0, 1], cell_text: (row, column) => fixed(values[row * columns + column], 2), dark: store.state.dark,
      describe: (row, column) => `target ${visible(rowLabels[row] ?? "")} (${row}) → source ${visible(columnLabels[column] ?? "")} (${column}): ` +
        `weight ${fixed(values[row * columns + column], 4)}`,
    });
    mark();
    markTokens(store);
    lines.refresh();
    matrix.refresh();
  }

  function mark() {
    const cell = markedCell(store.state, sides());
    heat.mark(cell.row, cell.column, answeredPlaces(store.state));
  }

  /** @param {string} name @param {() => Scene | null} sceneOf @returns {Picture | null} */
  const picture = (name, sceneOf) => weights && {
    name, scene: sceneOf, table: () => heat.table(), data: () => ({ rows: weights?.row_labels, columns: weights?.column_labels, ...found }),
  };

  return {
    element,
    render(changed) {
      if (["run", "align_layer", "align_head"].some((key) => changed.has(key))) load();
      else if (["dark", "size"].some((key) => changed.has(key)) || (changed.has("pos") && (weights?.rows ?? 0) > ALIGNED)) draw();
      if (["hover", "across"].some((key) => changed.has(key))) mark();
    },
  };
}
