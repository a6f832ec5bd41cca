/**
 * Logit lens: the prediction of each layer at each position.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Candidate } from "../page/types.js"
 *
 * @typedef {{top: Candidate[], next: number | null, rank: number | null}} LensCell
 * @typedef {{layers: string[], cells: LensCell[][]}} Lens
 */

import { Latest } from "../page/app.js";
import { choice, h, select } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { Heatmap } from "../page/heatmap.js";
import { labelAfter, labelsOf } from "../page/letters.js";
import { positionSide, positionTokens, selectedPosition, shownPosition, tokensBefore } from "../page/state.js";
import { percent, visible } from "../page/text.js";

/** @type {Tab} */
export const lensTab = { id: "lens", title: "Logit lens", create: createLens, exists: (model) => model.kind !== "recurrent" && model.has_head_over_tokens, route: "/lens" };

const COLOURS = /** @type {[string, string][]} */ ([
  ["top", "probability of the most probable token"], ["next", "probability of the actual token"], ["rank", "rank of the actual token"],
]);

/**
 * Return the number that colours a cell; NaN without one.
 * @param {LensCell | undefined} cell
 * @param {string} mode
 */
function lensValue(cell, mode) {
  if (mode === "next") return cell?.next ?? NaN;
  if (mode === "rank") return cell?.rank ? Math.log10(cell.rank) : NaN;
  return cell?.top[0]?.[2] ?? NaN;
}

/** @param {App} app @returns {Panel} */
function createLens(app) {
  const { store } = app;
  const norm = choice("Final norm", [["1", "with the final norm"], ["0", "without it"]], (value) => store.set({ norm: Number(value) }));
  const colours = select("colour", COLOURS, (lens) => store.set({ lens }));
  const heat = new Heatmap({
    label: "Logit lens", onhover: (_row, column) => store.set({ hover: { side: positionSide(store.state), index: column }, across: null }),
    onleave: () => store.set({ hover: null }), onselect: (_row, column) => store.set({ pos: column }),
  });
  const card = frame({
    title: "Logit lens", explanation: "The residual stream is the vector of a position, to which each layer adds. Each cell applies the output head of the model to the residual stream after a layer, and shows the most probable token at temperature 1.",
    formula: "p = softmax(head(norm(residual)))",
    picture: () => lens && {
      name: "logit-lens", scene: () => heat.scene("Logit lens"), data: () => ({ tokens: labels(), norm: Boolean(store.state.norm), ...lens }),
      table: () => ({
        header: ["layer", ...labels()],
        rows: lens?.cells.map((row, i) => [lens?.layers[i] ?? "", ...row.map(({ top: [best] }) => (best ? `${best[1]} ${best[2].toFixed(3)}` : null))]) ?? [],
      }),
    },
  }, h("div", { class: "row" }, norm.element, colours.element), heat.element);
  const latest = new Latest(app, card.body);
  /** @type {Lens | null} */
  let lens = null;
  const labels = () => labelsOf(positionTokens(store.state));

  function draw() {
    const { state } = store;
    if (!lens) return;
    const { layers, cells } = lens;
    const columns = cells[0]?.length ?? 0;
    const columnLabels = labels();
    const values = Float32Array.from(cells.flatMap((row) => row.map((cell) => lensValue(cell, state.lens))));
    const largest = Math.max(1, Math.log10(state.model?.vocab_size ?? 10));
    heat.update({
      rows: layers.length, columns, values, row_labels: layers, column_labels: columnLabels, row_axis: "layer", plain_rows: true,
      column_axis: state.run?.written.length ? "token to be predicted" : state.run?.target.length ? "token (its column predicts the next token)" : "token",
      scale: "sequential", range: state.lens === "rank" ? [0, largest] : [0, 1], dark: state.dark, cell: [66, 24],
      unit: state.lens === "rank" ? "log₁₀ rank" : "",
      cell_text: (row, column) => (state.lens === "rank" ? String(cells[row]?.[column]?.rank ?? "") : label(column, cells[row]?.[column]?.top[0]?.[1] ?? "")),
      describe: (row, column) => describe(layers[row] ?? "", column, columnLabels[column] ?? "", cells[row]?.[column]),
    });
    mark();
    card.refresh();
  }

  /** Return the label of a predicted token, with the letter that it completes. @param {number} position @param {string} text */
  const label = (position, text) => labelAfter(tokensBefore(store.state, position), text);

  /** @param {string} layer @param {number} position @param {string} token @param {LensCell | undefined} cell */
  function describe(layer, position, token, cell) {
    const top = (cell?.top ?? []).map(([, text, p]) => `${visible(label(position, text))} ${percent(p)}`).join(", ");
    const actual = cell && cell.next !== null ? `; actual token ${percent(cell.next)}, rank ${cell.rank}` : "";
    return `${layer}, position ${position} ${visible(token)}: ${top}${actual}`;
  }

  const mark = () => heat.mark(-1, shownPosition(store.state));

  return {
    element: h("div", { class: "panel" }, card.element),
    render(changed) {
      const { state } = store;
      norm.write(String(state.norm));
      colours.list.value = state.lens;
      if (["run", "norm"].some((key) => changed.has(key)) && state.run) {
        void latest.use(app.data.json(state.run, "lens", { norm: state.norm }), (value) => {
          lens = value;
          draw();
          heat.reveal(selectedPosition(store.state));
        });
      } else if (["lens", "dark"].some((key) => changed.has(key))) draw();
      if (["pos", "panel", "size"].some((key) => changed.has(key))) {
        heat.resize();
        heat.reveal(selectedPosition(state));
      }
      if (["hover", "across", "pos"].some((key) => changed.has(key))) mark();
    },
  };
}
