/**
 * Beam search: the tree of hypotheses, and the results ranked with a length penalty.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Scene, Shape } from "../page/scene.js"
 * @import { Picture } from "../page/types.js"
 *
 * @typedef {{
 *   id: number, parent: number | null, token: string, token_id: number, log_prob: number, step_log_prob: number,
 *   length: number, state: "root" | "kept" | "pruned" | "finished",
 * }} BeamNode
 * @typedef {{node: number, text: string, log_prob: number, score: number, ended: boolean}} BeamResult
 * @typedef {{nodes: BeamNode[], results: BeamResult[], unknown: string}} BeamTree
 */

import { Latest } from "../page/app.js";
import { button, choice, fill, h, numberField, slider } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { isPair } from "../page/input.js";
import { curve } from "../page/lines.js";
import { sceneElement } from "../page/scene.js";
import { fixed, percent, shortened, visible } from "../page/text.js";
import { theme } from "../page/theme.js";

/**
 * Return the divisor of log p: ((5 + n) / 6)^a (Wu 2016), or n^a. It equals `glassformer.inference.search.length_penalty`.
 * @param {number} length
 * @param {number} exponent
 * @param {string} formula "gnmt" or "average"
 */
export function lengthPenalty(length, exponent, formula) {
  return (formula === "gnmt" ? (5 + length) / 6 : length) ** exponent;
}

/**
 * Rank results: those that ended first, then by score = log p / penalty.
 * @param {BeamResult[]} results
 * @param {Map<number, BeamNode>} nodes
 * @param {number} exponent
 * @param {string} formula
 * @returns {(BeamResult & {length: number})[]}
 */
export function ranked(results, nodes, exponent, formula) {
  return results
    .map((result) => {
      const length = nodes.get(result.node)?.length ?? 1;
      return { ...result, length, score: result.log_prob / lengthPenalty(length, exponent, formula) };
    })
    .sort((a, b) => Number(b.ended) - Number(a.ended) || b.score - a.score);
}

/**
 * Return the row of each node, for a tree whose columns are steps. No two edges cross: the nodes of a step have the order
 * of their parents, and the children of a node are sorted by log-probability.
 * @param {BeamNode[]} nodes parents before their children
 * @returns {{rows: Map<number, number>, height: number}} rows from 0; the number of rows
 */
export function treeRows(nodes) {
  /** @type {Map<number, number>} */
  const rows = new Map();
  const parentRow = (/** @type {BeamNode} */ node) => rows.get(node.parent ?? -1) ?? 0;
  for (const step of [...new Set(nodes.map(({ length }) => length))].sort((a, b) => a - b)) {
    const column = nodes.filter(({ length }) => length === step);
    column.sort((a, b) => parentRow(a) - parentRow(b) || b.log_prob - a.log_prob);
    const wanted = column.map((node) => {
      const siblings = column.filter((other) => other.parent === node.parent);
      return parentRow(node) + siblings.indexOf(node) - (siblings.length - 1) / 2;
    });
    spread(wanted).forEach((row, i) => rows.set(/** @type {BeamNode} */ (column[i]).id, row));
  }
  const first = Math.min(0, ...rows.values());
  for (const [id, row] of rows) rows.set(id, row - first);
  return { rows, height: Math.max(0, ...rows.values()) + 1 };
}

/**
 * Return the first and the last row of the nodes before a step.
 * @param {BeamNode[]} nodes
 * @param {Map<number, number>} rows of `treeRows`
 * @param {number} steps
 * @returns {[number, number]}
 */
export function rowsBefore(nodes, rows, steps) {
  const shown = nodes.filter((node) => node.length < steps || node.parent === null).map((node) => rows.get(node.id) ?? 0);
  return [Math.min(...shown), Math.max(...shown)];
}

/**
 * Move sorted rows apart so that neighbours differ by 1 or more, with a small total shift. Rows that collide form a
 * block, which is centred on the mean of the wanted rows.
 * @param {number[]} wanted
 * @returns {number[]}
 */
export function spread(wanted) {
  /** @type {{sum: number, size: number}[]} `sum` is the sum of the first rows that the members want */
  const blocks = [];
  const start = (/** @type {{sum: number, size: number}} */ block) => block.sum / block.size;
  for (const place of wanted) {
    let block = { sum: place, size: 1 };
    for (let last = blocks.at(-1); last && start(last) + last.size > start(block); last = blocks.at(-1)) {
      blocks.pop();
      block = { sum: last.sum + block.sum - block.size * last.size, size: last.size + block.size };
    }
    blocks.push(block);
  }
  return blocks.flatMap((block) => Array.from({ length: block.size }, (_, i) => start(block) + i));
}

/**
 * Return the ids of a node and all of its ancestors.
 * @param {Map<number, BeamNode>} nodes
 * @param {number} id
 * @returns {Set<number>}
 */
export function pathTo(nodes, id) {
  const path = new Set();
  for (let node = nodes.get(id); node; node = node.parent === null ? undefined : nodes.get(node.parent)) path.add(node.id);
  return path;
}

/** @type {Tab} */
export const beamTab = { id: "beam", title: "Beam search", create: createBeam, exists: isPair, route: "/api/beam" };

const STEP = 118;
const WIDTH = 86;
const ROW = 25;
const MAX_NODES = 1500;

/**
 * Return the scene of a tree. The nodes of `best` are drawn with the accent colour.
 * @param {BeamNode[]} nodes
 * @param {Set<number>} best
 * @returns {Scene}
 */
function treeScene(nodes, best) {
  const { ink, faint, line, accent, paper, second } = theme();
  const { rows, height } = treeRows(nodes);
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const x = (/** @type {BeamNode} */ node) => 8 + node.length * STEP;
  const y = (/** @type {BeamNode} */ node) => 30 + (rows.get(node.id) ?? 0) * ROW;
  const last = nodes.reduce((most, node) => Math.max(most, node.length), 0);
  const strokeOf = (/** @type {BeamNode} */ node) => (best.has(node.id) ? accent : node.state === "pruned" ? line : faint);
  /** @type {Shape[]} */
  const shapes = [];
  for (let step = 1; step <= last; step++) shapes.push({ type: "text", x: 8 + step * STEP + WIDTH / 2, y: 12, text: `step ${step}`, size: 10.5, fill: faint, anchor: "middle" });
  for (const node of nodes) {
    const parent = node.parent === null ? undefined : byId.get(node.parent);
    if (!parent) continue;
    const isPruned = node.state === "pruned";
    shapes.push({
      type: "path", d: curve([x(parent) + WIDTH, y(parent)], [x(node), y(node)]), stroke: strokeOf(node),
      width: best.has(node.id) ? 2.5 : 1, ...(isPruned ? { dash: "3 3" } : {}),
    });
  }
  for (const node of nodes) {
    const isBest = best.has(node.id);
    const title = node.state === "root" ? "start" : `${visible(node.token)}: ${node.state}; log-probability ${fixed(node.step_log_prob, 3)} ` +
      `(${percent(Math.exp(node.step_log_prob))}), sum ${fixed(node.log_prob, 3)}, length ${node.length}`;
    shapes.push({ type: "rect", x: x(node), y: y(node) - 10, width: WIDTH, height: 20, rx: 4, fill: paper, stroke: strokeOf(node), title });
    if (node.state === "finished") shapes.push({ type: "rect", x: x(node) + 2, y: y(node) - 8, width: WIDTH - 4, height: 16, rx: 3, stroke: isBest ? accent : second, title });
    shapes.push({ type: "text", x: x(node) + 6, y: y(node) + 4, text: node.state === "root" ? "start" : shortened(node.token, 7), size: 11, mono: true, fill: node.state === "pruned" ? faint : ink, bold: isBest, title });
    if (node.state !== "root") shapes.push({ type: "text", x: x(node) + WIDTH - 4, y: y(node) + 3.5, text: fixed(node.log_prob, 1), size: 8.5, fill: faint, anchor: "end", title });
  }
  return { width: 8 + last * STEP + WIDTH + 12, height: 24 + height * ROW, background: paper, shapes };
}

/** @param {App} app @returns {Panel} */
function createBeam(app) {
  const { store } = app;
  const size = numberField("beam", { min: 1, max: 32 }, (beam) => store.set({ beam }));
  const limit = h("input", { type: "number", min: 1, max: 512, value: 60, "aria-label": "longest output" });
  const again = button("Search again", () => search(), { class: "primary" });
  const pruned = choice("Nodes", [["1", "all nodes"], ["0", "without pruned nodes"]], (value) => store.set({ pruned: Number(value) }));
  const place = h("div", { class: "scroll-xy", tabindex: 0, role: "region", "aria-label": "Tree of hypotheses" });
  const note = h("p", { class: "about" });
  const tree = frame({
    title: "Beam search",
    picture: () => found && {
      name: "beam-tree", scene, data: () => found,
      table: () => ({
        header: ["node", "parent", "step", "token", "log-probability", "sum", "state"],
        rows: (found?.nodes ?? []).map((node) => [node.id, node.parent, node.length, node.token, node.step_log_prob, node.log_prob, node.state]),
      }),
    },
    explanation: "Each step keeps the most probable continuations. Number: sum of log-probabilities. Dashed: pruned. Double frame: finished. Accent colour: the best result.",
  }, h("div", { class: "row" }, size.element,
    h("label", { class: "field" }, h("span", {}, "longest output"), limit), again, pruned.element), place, note);
  const penalty = slider("penalty", { min: 0, max: 2, step: 0.05 }, (value) => store.set({ penalty: value }), (value) => value.toFixed(2));
  const formula = choice("Formula", [["gnmt", "((5 + n) / 6)^a"], ["average", "n^a"]], (value) => store.set({ formula: value }));
  const list = h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Results" });
  const results = frame({
    title: "Results", explanation: "Finished hypotheses rank first. A change of the penalty a only ranks the results again. Press \"Search again\" to use it in the search.",
    formula: "score = log p / penalty(n)", picture: () => resultPicture(),
  }, h("div", { class: "row" }, formula.element, penalty.element), list);
  const element = h("div", { class: "panel" }, results.element, tree.element);
  const latest = new Latest(app, tree.body);
  /** @type {BeamTree | null} */
  let found = null;
  /** @type {Map<number, BeamNode>} */
  let nodes = new Map();

  function settings() {
    const { state } = store;
    const given = state.model?.generation ?? {};
    return {
      beam: state.beam || Number(given.beam ?? 4),
      length_penalty: state.penalty < 0 ? Number(given.length_penalty ?? 1) : state.penalty,
      length_penalty_type: state.formula || String(given.length_penalty_type ?? "gnmt"),
    };
  }

  function search() {
    const { run, ran, model } = store.state;
    const source = ran?.source; // the source of the shown run
    if (!run || !model) return;
    again.disabled = !source;
    tree.body.hidden = results.element.hidden = !source;
    if (!source) return;
    const body = { model: model.id, source, ...settings(), max_new_tokens: Math.max(1, Number(limit.value) || 60) };
    void latest.use(app.data.post("/api/beam", body), (value) => {
      found = /** @type {BeamTree} */ (value);
      nodes = new Map(found.nodes.map((node) => [node.id, node]));
      draw();
    });
  }

  function ranking() {
    const { length_penalty: exponent, length_penalty_type: kind } = settings();
    return ranked(found?.results ?? [], nodes, exponent, kind);
  }

  const shownNodes = () => (found?.nodes ?? []).filter((node) => store.state.pruned || node.state !== "pruned").slice(0, MAX_NODES);

  /** Scroll to the rows of the first steps, or to the root if these rows do not fit. */
  function showBeginning() {
    const shown = shownNodes();
    const { rows } = treeRows(shown);
    const [first, last] = rowsBefore(shown, rows, Math.max(1, Math.floor(place.clientWidth / STEP)));
    place.style.maxHeight = "";
    const isSmall = (last - first + 2) * ROW <= place.clientHeight;
    const rest = place.scrollHeight - first * ROW + 16; // with a scroll bar
    if (isSmall) place.style.maxHeight = `${Math.max(220, Math.min(place.clientHeight + 16, rest))}px`; // no empty rows above the beginning
    place.scrollTop = isSmall ? first * ROW : (rows.get(0) ?? 0) * ROW + 30 - place.clientHeight / 2;
  }

  const scene = () => found && treeScene(shownNodes(), pathTo(nodes, ranking()[0]?.node ?? -1));

  function draw() {
    const picture = scene();
    if (!found || !picture) return;
    fill(place, sceneElement(picture));
    showBeginning();
    const isCut = place.scrollWidth > place.clientWidth + 1 || place.scrollHeight > place.clientHeight + 1;
    const states = (/** @type {string} */ state) => found?.nodes.filter((node) => node.state === state).length;
    note.textContent = `${found.nodes.length} nodes: ${states("kept")} kept, ${states("pruned")} pruned, ${states("finished")} finished.` +
      (isCut ? " Scroll the tree to see all of it." : "") + (found.unknown ? ` ${found.unknown}` : "") + (found.nodes.length > MAX_NODES ? ` The first ${MAX_NODES} are drawn.` : "");
    drawResults();
    tree.refresh();
  }

  /** @param {{ended: boolean}} row */
  const state = (row) => (row.ended ? "finished" : "unfinished");

  function drawResults() {
    const rows = ranking();
    fill(list, h("table", { class: "results" }, h("thead", {}, h("tr", {}, ...["rank", "score", "log p", "length", "text", "state"].map((name, i) => h("th", { scope: "col", class: i > 0 && i < 4 ? "number" : name === "state" ? "beside" : "" }, name)))),
      h("tbody", {}, ...rows.map((row, i) => h("tr", {}, h("th", { scope: "row" }, i + 1), h("td", { class: "number" }, fixed(row.score, 3)), h("td", { class: "number" }, fixed(row.log_prob, 2)),
        h("td", { class: "number" }, row.length), h("td", { class: "wrap" }, row.text, h("span", { class: "facts below" }, state(row))), h("td", { class: "beside" }, state(row)))))));
    results.refresh();
  }

  /** @returns {Picture | null} */
  function resultPicture() {
    const rows = ranking();
    return rows.length ? {
      name: "beam-results", data: () => ({ ...settings(), results: rows }),
      table: () => ({ header: ["rank", "score", "log-probability", "length", "text", "state"], rows: rows.map((row, i) => [i + 1, row.score, row.log_prob, row.length, row.text, state(row)]) }),
    } : null;
  }

  return {
    element,
    render(changed) {
      const { beam, length_penalty: exponent, length_penalty_type: kind } = settings();
      size.write(beam);
      penalty.write(exponent);
      formula.write(kind);
      pruned.write(String(store.state.pruned));
      if (changed.has("run")) search();
      else if (["penalty", "formula", "pruned", "dark"].some((key) => changed.has(key))) draw();
    },
  };
}
