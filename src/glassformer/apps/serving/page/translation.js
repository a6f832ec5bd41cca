/**
 * Translations of a source: the best targets with their scores, and the alignment of one.
 *
 * @import { App, View } from "./main.js"
 * @import { Picture } from "../../inspector/page/types.js"
 * @import { Weights } from "../../inspector/page/lines.js"
 *
 * @typedef {{source_tokens: string[], target_tokens: string[], weights: number[][]}} Alignment
 * @typedef {{text: string, score: number, log_prob: number, ended: boolean, alignment?: Alignment}} Target
 */

import { fill, h, slider } from "../../inspector/page/dom.js";
import { frame } from "../../inspector/page/frame.js";
import { ALIGNED, ALIGNMENT_ABOUT, alignmentScene } from "../../inspector/page/lines.js";
import { sceneElement } from "../../inspector/page/scene.js";
import { fixed, percent } from "../../inspector/page/text.js";
import { formView, lookLink } from "./form.js";
import { post } from "./requests.js";
import { lookAddress } from "./writer.js";

/** @param {App} app @returns {View} */
export function translationView(app) {
  let n = 4;
  const targets = slider("targets", { min: 1, max: 8, step: 1 }, (value) => { n = value; });
  targets.write(n);
  return formView(app, {
    label: "Source", placeholder: "A text to translate", action: "Translate", controls: () => [targets.element],
    ask: async (source) => {
      const model = app.model.id;
      const { data: [found] } = await post("v1/translate", { model, sources: [source], n_best: n, beam: Math.max(4, n), alignment: true });
      return targetsOf(found.targets, model, source);
    },
  });
}

/** @param {Target[]} targets @param {string} model @param {string} source */
function targetsOf(targets, model, source) {
  const place = h("div", { class: "panel" });
  const buttons = targets.map((target, i) => h("button", { type: "button", class: "target", onclick: () => choose(i) },
    h("span", { class: "target-text", dir: "auto" }, target.text || "(empty)"),
    h("span", { class: "facts number" }, `score ${fixed(target.score)} · probability ${percent(Math.exp(target.log_prob))}${target.ended ? "" : " · ended by the limit"}`)));
  /** @param {number} chosen */
  function choose(chosen) {
    buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(i === chosen)));
    const target = /** @type {Target} */ (targets[chosen]);
    const look = h("div", { class: "row" }, lookLink(lookAddress(model, { source, target: target.text })));
    fill(place, target.alignment ? alignmentCard(target.alignment) : null, look);
  }
  choose(0);
  return [h("div", { class: "beside" },
    h("section", { class: "card frame", "aria-label": "Targets" }, h("h2", {}, targets.length > 1 ? "Targets, best first" : "Target"),
      h("div", { class: "targets" }, ...buttons)),
    place)];
}

/** @param {Alignment} alignment */
function alignmentCard(alignment) {
  const { source_tokens: columns, target_tokens: rows, weights } = alignment;
  /** @type {Weights} */
  const drawn = {
    rows: rows.length, columns: columns.length, values: weights.flat(), row_labels: rows, column_labels: columns,
    row_side: "written", column_side: "source", first_row: 0,
  };
  const scene = () => alignmentScene(drawn, 0);
  /** @type {() => Picture} */
  const picture = () => ({
    name: "alignment", scene, data: () => alignment,
    table: () => ({ header: ["target", ...columns], rows: rows.map((token, i) => [token, ...(weights[i] ?? [])]) }),
  });
  const isCut = rows.length > ALIGNED || columns.length > ALIGNED;
  return frame({
    title: "Alignment", picture,
    explanation: `${ALIGNMENT_ABOUT}${isCut ? ` The first ${ALIGNED} tokens are drawn.` : ""}`,
  }, h("div", { class: "scroll-x" }, sceneElement(scene()))).element;
}
