/**
 * Experts: which experts read which token, in one layer.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 *
 * @typedef {[expert: number, weight: number][][]} LayerExperts of each token
 * @typedef {{n_experts: number, stacks: Record<string, LayerExperts[]>}} Experts
 */

import { Latest } from "../page/app.js";
import { h, numberOptions, select } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { Heatmap } from "../page/heatmap.js";
import { labelsOf } from "../page/letters.js";
import { fixed, percent, visible } from "../page/text.js";

/** @type {Tab} */
export const expertsTab = { id: "experts", title: "Experts", create: createExperts, exists: (model) => model.experts > 0, route: "/experts" };

/**
 * Return the weights (experts, tokens) of a layer, and the share of the choices that each expert gets.
 * @param {LayerExperts} layer
 * @param {number} count number of experts
 */
export function expertWeights(layer, count) {
  const values = new Float32Array(count * layer.length);
  layer.forEach((active, token) => active.forEach(([expert, weight]) => { values[expert * layer.length + token] = weight; }));
  const chosen = layer.flat().map(([expert]) => expert);
  return { values, shares: Array.from({ length: count }, (_, i) => chosen.filter((expert) => expert === i).length / Math.max(1, chosen.length)) };
}

/** @param {App} app @returns {Panel} */
function createExperts(app) {
  const { store } = app;
  const stacks = select("stack", [], (kind) => store.set({ kind }));
  const layers = select("layer", [], (layer) => store.set({ layer: Number(layer) }));
  const heat = new Heatmap({
    label: "Experts", onleave: () => store.set({ hover: null }),
    onhover: (_row, column) => store.set({ hover: { side: side(), index: column }, across: null }),
    onselect: (_row, column) => store.set({ pos: column }),
  });
  const card = frame({
    title: "Experts", explanation: "Rows are the experts of a layer, with their share of the choices of the router on this text. Columns are tokens. A coloured cell shows the weight of an expert that reads the token. The other experts compute nothing for this token.",
    formula: "p = softmax(W x);  y = Σ weight · expert(x) over the active experts",
    picture: () => {
      const numbers = shown();
      if (!numbers) return null;
      const { values, columns, rows, labels } = numbers;
      return {
        name: `experts-${stack()}-${number()}`, scene: () => heat.scene("Experts"),
        data: () => ({ stack: stack(), layer: number(), tokens: labels, n_experts: rows.length, experts: found?.stacks[stack()]?.[number()] }),
        table: () => ({ header: ["expert", ...labels], rows: rows.map((_, i) => [i, ...values.subarray(i * columns, (i + 1) * columns)]) }),
      };
    },
  }, h("div", { class: "row" }, stacks.element, layers.element), heat.element);
  const latest = new Latest(app, card.body);
  /** @type {Experts | null} */
  let found = null;

  const stack = () => (found && store.state.kind in found.stacks ? store.state.kind : Object.keys(found?.stacks ?? {}).at(-1) ?? "decoder");
  const number = () => Math.max(0, Math.min(store.state.layer, (found?.stacks[stack()]?.length ?? 1) - 1));
  const side = () => store.state.run?.attention[stack()]?.columns ?? "target";

  /** Return the numbers of the shown layer, with the labels of its tokens. */
  function shown() {
    const layer = found?.stacks[stack()]?.[number()];
    if (!found || !layer || !store.state.run) return null;
    const { values, shares } = expertWeights(layer, found.n_experts);
    return { values, columns: layer.length, rows: shares.map((share, i) => `${i}, ${percent(share)}`), labels: labelsOf(store.state.run[side()]) };
  }

  function draw() {
    const numbers = shown();
    if (!found || !numbers) return;
    const { values, columns, rows, labels } = numbers;
    stacks.setOptions(Object.keys(found.stacks).map((name) => [name, name]));
    layers.setOptions(numberOptions(found.stacks[stack()]?.length ?? 0));
    stacks.list.value = stack();
    stacks.element.hidden = Object.keys(found.stacks).length === 1;
    layers.list.value = String(number());
    heat.update({
      rows: rows.length, columns, values, row_labels: rows, column_labels: labels, row_axis: "expert", column_axis: "token", plain_rows: true,
      scale: "sequential", range: [0, 1], dark: store.state.dark,
      describe: (row, column) => `expert ${row}, position ${column} ${visible(labels[column] ?? "")}: weight ${fixed(values[row * columns + column], 3)}`,
    });
    mark();
    card.refresh();
  }

  const mark = () => heat.mark(-1, store.state.hover?.side === side() ? store.state.hover.index : store.state.pos);

  return {
    element: h("div", { class: "panel" }, card.element),
    render(changed) {
      const { run } = store.state;
      if (changed.has("run") && run) {
        void latest.use(app.data.json(run, "experts"), (value) => {
          found = value;
          draw();
        });
      } else if (["kind", "layer", "dark"].some((key) => changed.has(key))) draw();
      if (["pos", "panel", "size"].some((key) => changed.has(key))) heat.resize();
      if (["hover", "pos"].some((key) => changed.has(key))) mark();
    },
  };
}
