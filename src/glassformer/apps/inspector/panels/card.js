/**
 * Card of the model: parts of the network, parameters per part, training curve.
 *
 * @import { App, Panel } from "../page/app.js"
 * @import { Model } from "../page/types.js"
 */

import { barList, barsScene, curvesScene, curvesTable } from "../page/charts.js";
import { fill, h } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { sceneElement } from "../page/scene.js";
import { count, percent } from "../page/text.js";

/** @param {Model} model */
export function summaryFacts(model) {
  const kinds = { decoder: "decoder", encoder: "encoder", "encoder-decoder": "encoder-decoder", recurrent: "recurrent encoder-decoder" };
  return [
    kinds[model.kind], `${count(model.parameters)} parameters`, `vocabulary ${count(model.vocab_size)}`, `context ${count(model.max_len)}`,
    model.step ? `step ${count(model.step)}` : null, // an imported model has none
    model.learned ? `learned to ${model.learned}` : null,
  ].filter((fact) => fact !== null);
}

/** @param {Model} model */
function curvesOf(model) {
  return Object.entries(model.curves ?? {}).map(([name, points]) => ({ name, points, ...(name === "validation" ? { dash: "5 3" } : {}) }));
}

/** @param {Model} model */
function partBars(model) {
  const largest = Math.max(1, ...model.parts.map((part) => part.parameters));
  return model.parts.map(({ name, parameters }) => ({
    label: name, value: parameters / largest, text: count(parameters),
    title: `${name}: ${parameters.toLocaleString("en-US")} parameters, ${percent(parameters / model.parameters)} of all`,
  }));
}

/** @param {App} app @returns {Panel} */
export function createCard(app) {
  const model = () => /** @type {Model} */ (app.store.state.model);
  const boxes = frame({ title: "Architecture", explanation: "Parts of the network, from input to output." });
  for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", "Parts of the network"]]) boxes.body.setAttribute(name ?? "", value ?? "");
  const parts = frame({
    title: "Parameters", explanation: "Number of parameters per part.",
    picture: () => ({
      name: "parameters", scene: () => barsScene(partBars(model()), "Parameters"), data: () => model().parts,
      table: () => ({ header: ["part", "parameters"], rows: model().parts.map((part) => [part.name, part.parameters]) }),
    }),
  });
  const curve = frame({
    title: "Training", explanation: "Loss in nats per target against the step.", formula: "loss = −mean log p(target)",
    picture: () => ({
      name: "training-curve", scene: () => curvesScene(curvesOf(model()), { width: 640, height: 320, title: "Loss" }),
      table: () => curvesTable(curvesOf(model())), data: () => model().curves,
    }),
  });
  const element = h("div", { class: "model-card", id: "model-card", hidden: true }, boxes.element, parts.element, curve.element);

  function draw() {
    const { model: shown } = app.store.state;
    if (!shown) return;
    fill(boxes.body, h("ol", { class: "architecture" }, ...shown.architecture.map(({ title, rows }) => h("li", { class: "box" },
      h("h3", {}, title), h("dl", {}, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))))));
    fill(parts.body, barList(partBars(shown)));
    curve.element.hidden = !shown.curves;
    const width = Math.max(260, Math.min(420, curve.body.clientWidth || 340));
    if (shown.curves) fill(curve.body, sceneElement(curvesScene(curvesOf(shown), { width, height: 190 })));
  }

  return {
    element,
    render(changed) {
      element.hidden = !app.store.state.card || !app.store.state.model;
      if (!element.hidden && ["model", "card", "dark", "size"].some((key) => changed.has(key))) draw();
    },
  };
}
