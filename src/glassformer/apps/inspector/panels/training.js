/**
 * Training: the numbers that a run logs, drawn while it is running.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Curve } from "../page/charts.js"
 *
 * @typedef {{folder: string, offset: number, lines: Record<string, any>[], is_running: boolean, checkpoints: number[], max_steps: number | null,
 *   model_step: number | null, metrics: Record<string, string>}} Live
 */

import { curvesScene, curvesTable } from "../page/charts.js";
import { fill, h, select } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { sceneElement } from "../page/scene.js";
import { withQuery } from "../page/source.js";
import { compact, count, duration } from "../page/text.js";

/** @type {Tab} */
export const trainingTab = { id: "training", title: "Training", create: createTraining, exists: (model) => model.folder !== "" && model.step !== null, route: "/api/live", needs_no_run: true };

const LOSSES = ["train/loss", "eval/valid_loss", "eval/train_loss"];
const NAMES = /** @type {Record<string, string>} */ ({
  "train/loss": "Training steps: loss, nats per target", gradient_norm: "Norm of the gradient before clipping", learning_rate: "Learning rate",
  tokens_per_s: "Speed, tokens per second", tokens_per_s_per_device: "Speed of each device, tokens per second",
  mfu: "Fraction of the peak rate of the devices (MFU)", peak_memory_bytes: "Peak memory of the device, bytes", step_ms: "Time of a step, milliseconds", save_ms: "Time of saving, milliseconds",
});
const SIDES = /** @type {Record<string, string>} */ ({ valid: "Validation", train: "Part of the training data" });

/**
 * Return the state of a run. The process of a run that was started from this page locks the run folder a little after
 * its start, and unlocks the folder a little before its end.
 * @param {boolean} isRunning
 * @param {boolean} isStarted
 */
export function stateOf(isRunning, isStarted) {
  if (isRunning) return "running";
  return isStarted ? "waiting for its process" : "not running";
}

/**
 * Return the title of a logged number, with its unit: `eval/valid_bits_per_byte` is "Validation: bits per byte".
 * @param {string} name
 * @param {Record<string, string>} metrics title of each metric
 */
export function titleOf(name, metrics) {
  const [, of, side = "", score = ""] = /^(eval|mean)\/(valid|train)_(\w+)$/.exec(name) ?? [];
  if (!of) return NAMES[name] ?? name.replaceAll("_", " ").replaceAll("/", " ");
  return `${SIDES[side]}: ${metrics[score] ?? score.replaceAll("_", " ")}${of === "mean" ? ", of the mean of checkpoints" : ""}`;
}

/**
 * Return the numbers of logged lines by their names.
 * @param {Record<string, any>[]} lines
 * @returns {Map<string, [number, number][]>}
 */
export function seriesOf(lines) {
  /** @type {Map<string, [number, number][]>} */
  const series = new Map();
  for (const { step, ...numbers } of lines) {
    for (const [name, value] of Object.entries(numbers)) {
      if (typeof value !== "number") continue;
      if (!series.has(name)) series.set(name, []);
      series.get(name)?.push([step, value]);
    }
  }
  return series;
}

/**
 * Return the seconds until the last step; NaN if the rate is not known.
 * @param {Map<string, [number, number][]>} series
 * @param {number} maxSteps
 */
export function timeLeft(series, maxSteps) {
  const recent = (series.get("step_ms") ?? []).slice(-10);
  const [last = NaN] = recent.at(-1) ?? [];
  const mean = recent.reduce((sum, [, ms]) => sum + ms, 0) / recent.length;
  return (Math.max(0, maxSteps - last) * mean) / 1000;
}

/**
 * @param {App} app
 * @param {string} [folder] of the run; by default that of the model
 * @param {number | null} [lastStep] is used until the server has read the last step from the run
 * @returns {Panel}
 */
export function createTraining(app, folder = app.store.state.model?.folder, lastStep = null) {
  const facts = h("dl", { class: "live-facts" });
  const lossPlace = h("div");
  const loss = frame({
    title: "Loss", explanation: "Nats per target against the step. Training lines are means with dropout; evaluation lines are without it.",
    formula: "loss = −mean log p(target)",
    picture: () => {
      const [curves, title] = [shownCurves(), loss.title.textContent ?? ""];
      return curves.length ? {
        name: (chosen || "loss").replace("/", "-"), scene: () => curvesScene(curves, { width: 800, height: 400, title }),
        table: () => curvesTable(curves), data: () => curves,
      } : null;
    },
  }, facts, lossPlace);
  /** Name of the logged numbers that are drawn; empty for the losses. */
  let chosen = "";
  const numbers = select("numbers", [], (name) => {
    chosen = name;
    draw();
  });
  loss.tools.prepend(numbers.element);
  const samples = h("ol", { class: "samples" });
  const sampleCard = frame({
    title: "Samples", explanation: "A text that the model writes at each evaluation. │ separates the prompt from the output.",
    picture: () => ({
      name: "samples", data: () => sampleLines(),
      table: () => ({ header: ["step", "sample"], rows: sampleLines().map((line) => [line.step, line.sample]) }),
    }),
  }, samples);
  const element = h("div", { class: "panel" }, loss.element, sampleCard.element);
  /** @type {Record<string, any>[]} */
  let lines = [];
  let offset = 0;
  /** @type {Live | null} */
  let live = null;
  let timer = 0;
  let isPolling = false;

  const titles = () => live?.metrics ?? {};
  const sampleLines = () => lines.filter((line) => typeof line.sample === "string");

  /** @returns {Curve[]} */
  function shownCurves() {
    const series = seriesOf(lines);
    if (chosen) return [{ name: titleOf(chosen, titles()), points: series.get(chosen) ?? [] }];
    return LOSSES.filter((name) => series.has(name)).map((name) => ({ name: titleOf(name, titles()), points: series.get(name) ?? [], ...(name === "eval/train_loss" ? { dash: "5 3" } : {}) }));
  }

  async function poll() {
    clearTimeout(timer);
    if (isPolling) return;
    isPolling = true;
    try {
      const answer = /** @type {Live} */ (await app.source.get(withQuery("/api/live", { since: offset, folder })));
      live = { ...answer, max_steps: answer.max_steps ?? lastStep };
      if (answer.offset < offset) lines = [];
      const first = answer.lines[0]?.step ?? Infinity;
      if (lines.length && first < (lines.at(-1)?.step ?? 0)) lines = lines.filter((line) => line.step < first);
      lines = [...lines, ...answer.lines];
      offset = answer.offset;
      app.store.set({ model_step: folder === app.store.state.model?.folder ? answer.model_step : null });
      draw();
      if (answer.is_running && element.isConnected) timer = setTimeout(() => void poll(), 2000);
    } catch (error) {
      app.fail(error);
    } finally {
      isPolling = false;
    }
  }

  function draw() {
    const series = seriesOf(lines);
    const last = lines.at(-1);
    const latest = (/** @type {string} */ name, unit = "") => {
      const value = series.get(name)?.at(-1)?.[1];
      return value === undefined ? null : compact(value) + unit;
    };
    /** @type {[string, string | null][]} */
    const shown = [
      ["state", stateOf(live?.is_running ?? false, lastStep !== null)],
      ["step", last ? `${count(last.step)}${live?.max_steps ? ` of ${count(live.max_steps)}` : ""}` : "no line yet"],
      ["loss", latest("train/loss")], ["validation", latest("eval/valid_loss")], ["rate", latest("tokens_per_s", " tokens/s")],
      ["time left", live?.is_running && live.max_steps && series.has("step_ms") ? duration(timeLeft(series, live.max_steps)) : null],
      ["checkpoints", live?.checkpoints.length ? String(live.checkpoints.length) : null],
    ];
    fill(facts, ...shown.filter(([, value]) => value !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    const width = Math.max(280, Math.min(1240, lossPlace.clientWidth || 600));
    numbers.setOptions([["", "loss"], ...[...series.keys()].filter((name) => !LOSSES.includes(name)).map((name) => /** @type {[string, string]} */ ([name, titleOf(name, titles())]))]);
    numbers.list.value = chosen;
    loss.title.textContent = chosen ? titleOf(chosen, titles()) : "Loss";
    /** @type {HTMLElement} */ (loss.element.querySelector(".about")).hidden = chosen !== "";
    fill(lossPlace, shownCurves().length ? sceneElement(curvesScene(shownCurves(), { width, height: 280 })) : h("p", { class: "empty" }, "No loss is logged yet."));
    fill(samples, ...sampleLines().slice(-50).reverse().map((line) => h("li", {}, h("span", { class: "facts" }, `step ${line.step}`), h("p", { class: "sample", dir: "auto" }, line.sample))));
    sampleCard.element.hidden = !sampleLines().length;
    loss.refresh();
    sampleCard.refresh();
  }

  return {
    element,
    render(changed) {
      if (changed.has("panel")) void poll();
      else if (["dark", "size"].some((key) => changed.has(key))) draw();
    },
  };
}
