/**
 * Forms of the models that translate a source, fill masks, or label texts or words.
 *
 * @import { Weights } from "../../inspector/page/lines.js"
 * @import { Picture } from "../../inspector/page/types.js"
 * @import { App, View } from "./main.js"
 *
 * @typedef {{source_tokens: string[], target_tokens: string[], weights: number[][]}} Alignment
 * @typedef {{text: string, score: number, log_prob: number, ended: boolean, alignment?: Alignment}} Target
 */

import { barList } from "../../inspector/page/charts.js";
import { button, fill, grow, h, insertText, slider } from "../../inspector/page/dom.js";
import { frame } from "../../inspector/page/frame.js";
import { ALIGNED, ALIGNMENT_ABOUT, alignmentScene } from "../../inspector/page/lines.js";
import { sceneElement } from "../../inspector/page/scene.js";
import { fixed, percent } from "../../inspector/page/text.js";
import { MAX_HEIGHT, formView, lookLink } from "./form.js";
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
  return [h("div", { class: "beside" }, card(targets.length > 1 ? "Targets, best first" : "Target", h("div", { class: "targets" }, ...buttons)), place)];
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

const MASK = "[MASK]";
const CANDIDATES = 8;

/** @param {App} app @returns {View} */
export function maskView(app) {
  return formView(app, {
    label: "Text with masks", placeholder: `A text with ${MASK} in place of a word`, action: "Fill",
    controls: (area) => [button(`insert ${MASK}`, () => insertText(area, MASK), { class: "quiet" })],
    ask: async (text, area) => {
      const model = app.model.id;
      const { data: [found] } = await post("v1/fill-mask", { model, text, ...(isPair(app) ? {} : { n: CANDIDATES }) });
      /** @type {{text: string, probability: number}[][]} */
      const masks = found.candidates;
      return [
        card("Filled text", h("p", { class: "written", dir: "auto" }, found.text), lookLink(lookAddress(model, isPair(app) ? { source: text } : { text }))),
        h("div", { class: "beside" }, ...masks.map((candidates, i) => card(masks.length > 1 ? `Mask ${i + 1}` : "Candidates", barList(candidates.map((one) => ({
          label: one.text, value: one.probability, text: percent(one.probability), title: "Write it into the text",
          onclick: () => use(area, i, one.text.trim()),
        })))))),
      ];
    },
  });
}

/** @param {App} app */
const isPair = (app) => app.model.abilities.includes("translate");

/** Write a candidate in place of a mask. @param {HTMLTextAreaElement} area @param {number} number @param {string} text */
function use(area, number, text) {
  let at = -1;
  area.value = area.value.replaceAll(MASK, (mask) => (++at === number ? text : mask));
  grow(area, MAX_HEIGHT);
  area.focus();
}

/** @param {App} app @returns {View} */
export function labelView(app) {
  return formView(app, {
    label: "Text", placeholder: "A text", action: "Classify",
    ask: async (text) => {
      const model = app.model.id;
      /** @type {{data: {number?: number, classes?: Record<string, number>}[]}} */
      const { data: [found = {}] } = await post("v1/classify", { model, texts: text });
      const look = lookLink(lookAddress(model, { text }));
      if (found.number !== undefined) return [card("Number", h("p", { class: "big number" }, fixed(found.number, 4)), look)];
      const classes = Object.entries(found.classes ?? {}).sort(([, a], [, b]) => b - a);
      return [card("Labels", barList(classes.map(([label, p]) => ({ label, value: p, text: percent(p) }))), look)];
    },
  });
}

/** @param {App} app @returns {View} */
export function tagView(app) {
  return formView(app, {
    label: "Sentence", placeholder: "A sentence whose words are separated by spaces", action: "Tag",
    ask: async (sentences) => {
      const model = app.model.id;
      const { data: [found] } = await post("v1/tag", { model, sentences });
      /** @type {{words: string[], tags: string[], probabilities: number[]}} */
      const { words, tags, probabilities } = found;
      return [card("Tags", h("ul", { class: "tags" }, ...words.map((word, i) => h("li", {}, h("span", { dir: "auto" }, word),
        h("strong", {}, tags[i] ?? "cut"), h("span", { class: "facts number" }, percent(probabilities[i] ?? NaN))))),
      lookLink(lookAddress(model, { text: sentences })))];
    },
  });
}

/** @param {string} title @param {...HTMLElement} children */
const card = (title, ...children) => h("section", { class: "card frame", "aria-label": title }, h("h2", {}, title), ...children);
