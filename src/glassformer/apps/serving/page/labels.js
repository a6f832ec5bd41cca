/**
 * Forms of the models that fill masks, or label texts or words.
 *
 * @import { App, View } from "./main.js"
 */

import { barList } from "../../inspector/page/charts.js";
import { button, grow, h, insertText } from "../../inspector/page/dom.js";
import { fixed, percent } from "../../inspector/page/text.js";
import { MAX_HEIGHT, formView, lookLink } from "./form.js";
import { post } from "./requests.js";
import { lookAddress } from "./writer.js";

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
function isPair(app) {
  return app.model.abilities.includes("translate");
}

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
function card(title, ...children) {
  return h("section", { class: "card frame", "aria-label": title }, h("h2", {}, title), ...children);
}
