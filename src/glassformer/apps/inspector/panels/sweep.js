/**
 * Sweep: the table of the variants of a run, and a point for each seed, drawn while the runs are trained.
 *
 * @import { Scene, Shape } from "../page/scene.js"
 *
 * @typedef {{variant: string, mean: number | null, verdict: string | null, values: Record<string, number>}} Row
 * @typedef {{rows: Row[], baseline: string, cells: string[][], legend: string, runs: Record<string, Record<string, string>>, is_running: boolean}} Sweep
 */

import { axisTicks } from "../page/charts.js";
import { button, fill, h } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { sceneElement } from "../page/scene.js";
import { theme } from "../page/theme.js";

const ROW = 40;

/**
 * Return the scene of the values: a row per variant with a point per seed and a line at the mean, on one axis.
 * @param {Sweep} sweep
 * @param {number} width
 * @returns {Scene}
 */
function pointsScene({ rows, baseline, cells }, width) {
  const { ink, faint, line, accent, second, paper } = theme();
  const values = rows.flatMap((row) => Object.values(row.values));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const height = 16 + ROW * rows.length + 40;
  const n = Math.floor((width - 32) / 6.8); // characters of a label
  const x = (/** @type {number} */ value) => 16 + (high > low ? (value - low) / (high - low) : 0.5) * (width - 32);
  /** @type {Shape[]} */
  const shapes = axisTicks(low, high, Math.max(2, width / 150)).flatMap((value) => [
    { type: "path", d: `M${x(value)} 8V${height - 40}`, stroke: line },
    { type: "text", x: x(value), y: height - 26, text: String(value), size: 10.5, fill: faint, anchor: "middle" },
  ]);
  shapes.push({ type: "text", x: width / 2, y: height - 8, text: cells[0]?.[2] ?? "", size: 11, fill: faint, anchor: "middle" });
  for (const [i, { variant, mean, verdict, values: seeds }] of rows.entries()) {
    const y = 16 + ROW * i;
    const fill = variant === baseline ? faint : verdict === "worse" ? second : accent;
    shapes.push({ type: "text", x: 16, y: y + 8, text: variant.length > n ? `${variant.slice(0, n - 1)}…` : variant, fill: ink, title: variant });
    if (mean !== null) shapes.push({ type: "path", d: `M${x(mean)} ${y + 14}V${y + 34}`, stroke: ink, width: 2, title: `mean ${mean}` });
    for (const [seed, value] of Object.entries(seeds)) shapes.push({ type: "circle", x: x(value), y: y + 24, r: 4.5, fill, stroke: paper, title: `seed ${seed}: ${value}` });
  }
  return { width, height, background: paper, shapes };
}

/** @type {typeof import("./start.js").createStart} */
export function createSweep(app, session, onopen) {
  const place = h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Table" });
  const legend = h("div", { class: "about" });
  const table = frame({
    title: `Sweep in ${session.folder}`,
    explanation: "The means of the runs that are done, and the mean differences of equal seeds to the baseline. “So far” is not a verdict: the verdict and p follow after the planned seeds.",
  }, place, legend);
  const points = frame({
    title: "Each seed", explanation: "A point is the run of a seed, a line the mean of a variant. The baseline is grey, and worse variants are orange.",
    picture: () => sweep && {
      name: "sweep", scene: () => sweep && pointsScene(sweep, 800), data: () => sweep?.rows,
      table: () => ({ header: ["variant", "seed", "value"], rows: sweep?.rows.flatMap(({ variant, values }) => Object.entries(values).map(([seed, value]) => [variant, seed, value])) ?? [] }),
    },
  });
  const element = h("div", { class: "panel" }, table.element, points.element);
  /** @type {Sweep | null} */
  let sweep = null;

  function draw() {
    if (!sweep) return;
    const { cells, rows, runs, is_running: isRunning } = sweep;
    const both = (value = "", error = "") => (error === "–" ? value : `${value} ± ${error}`.replace("± ±", "±"));
    const [header = [], ...lines] = cells.map(([variant = "", verdict, mean, error, difference, of, p, seeds]) => [variant, verdict, both(mean, error), both(difference, of), p, seeds]);
    const opens = rows.map(({ variant }) => Object.entries(runs[variant] ?? {}).map(([seed, folder]) =>
      button(seed, () => void app.source.post("/api/open", { folder }).then(({ id }) => onopen(id)).catch(app.fail), { class: "quiet", "aria-label": `Open the model of ${variant}, seed ${seed}` })));
    fill(place, h("table", { class: "results" },
      h("thead", {}, h("tr", {}, ...[...header, "open the model of seed"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...lines.map(([variant, ...rest], i) => h("tr", {}, h("th", { scope: "row" }, variant?.replaceAll(" ", "\n")), ...rest.map((text, column) => h("td", { class: column ? "" : "wrap" }, text)), h("td", {}, ...opens[i] ?? []))))));
    const n = opens.flat().length;
    const state = `${isRunning ? "running" : "not running"}, ${n} ${n === 1 ? "run is" : "runs are"} done`;
    fill(legend, ...[state, ...sweep.legend.split("\n")].map((sentence) => h("p", {}, sentence)));
    const hasValues = rows.some(({ mean }) => mean !== null);
    fill(points.body, hasValues ? sceneElement(pointsScene(sweep, Math.max(280, points.body.clientWidth))) : h("p", { class: "empty" }, "No run is done yet."));
    points.refresh();
  }

  async function poll() {
    try {
      const next = /** @type {Sweep} */ (await app.source.get("/api/sweep"));
      const isNew = JSON.stringify(next) !== JSON.stringify(sweep); // otherwise, a button keeps its focus
      sweep = next;
      if (isNew) draw();
      if (next.is_running) setTimeout(() => { if (element.isConnected) void poll(); }, 2000);
    } catch (error) {
      app.fail(error);
    }
  }

  app.store.subscribe((changed) => { if (changed.has("dark") && element.isConnected) draw(); });
  void poll();
  return element;
}
