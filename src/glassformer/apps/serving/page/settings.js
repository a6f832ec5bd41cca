/**
 * Settings of generation.
 *
 * @import { Model } from "./main.js"
 */

import { button, fill, h, legendParts, slider } from "../../inspector/page/dom.js";
import { tokenLegend } from "../../inspector/page/colours.js";

/** Number of alternatives of each token. */
export const TOP = 8;
const MAX_TOKENS = 256;

/** The settings, and the card that changes them. */
export class Settings {
  /** @param {() => void} onchange called when something changes that the views draw */
  constructor(onchange) {
    this.onchange = onchange;
    this.system = "";
    /** Settings that the user has changed. The others are those of the model. @type {Record<string, number>} */
    this.own = {};
    /** @type {number | null} */
    this.seed = null;
    this.has_colours = false;
    this.element = h("div", { class: "panel" });
  }

  /** Return the settings of a request. @param {number} seed */
  body(seed) {
    return { max_tokens: MAX_TOKENS, ...this.own, seed };
  }

  /** Return the seed of the next text: the one of the user, or a random one. */
  nextSeed() {
    return this.seed ?? Math.floor(Math.random() * 2 ** 31);
  }

  /**
   * Draw the card for a model.
   * @param {Model} model
   * @param {boolean} hasSystem true if there is a system message
   * @param {boolean} dark
   */
  draw(model, hasSystem, dark) {
    const system = h("textarea", { rows: 2, placeholder: "optional", oninput: () => { this.system = system.value; } }, this.system);
    const longest = Math.min(1024, model.max_len);
    const reset = () => {
      [this.own, this.seed] = [{}, null];
      this.draw(model, hasSystem, dark);
    };
    fill(this.element,
      h("section", { class: "card frame", "aria-label": "Settings" },
        h("div", { class: "frame-heading" }, h("h2", {}, "Settings"), h("div", { class: "tools" },
          button("reset", () => reset(), { class: "quiet", title: "Use the settings of the model" }))),
        hasSystem ? h("label", { class: "field wide" }, h("span", {}, "system message"), system) : null,
        this.#slider(model, "temperature", "temperature", { min: 0, max: 2, step: 0.05 }),
        this.#slider(model, "top-p", "top_p", { min: 0.05, max: 1, step: 0.05 }),
        this.#slider(model, "top-k", "top_k", { min: 0, max: 100, step: 1 }, (k) => (k ? String(k) : "all")),
        this.#slider(model, "new tokens", "max_tokens", { min: 1, max: longest, step: 1 }),
        this.#seed()),
      this.#colours(dark));
  }

  /**
   * @param {Model} model @param {string} label @param {string} key
   * @param {{min: number, max: number, step: number}} range @param {(value: number) => string} [format]
   */
  #slider(model, label, key, range, format) {
    const { element, write } = slider(label, range, (value) => { this.own[key] = value; }, format);
    write(Math.min(range.max, this.own[key] ?? model.defaults[key] ?? MAX_TOKENS));
    return element;
  }

  #seed() {
    const input = h("input", {
      type: "number", min: 0, placeholder: "random", "aria-label": "seed", value: this.seed,
      oninput: () => { this.seed = input.value === "" || !input.validity.valid ? null : Number(input.value); },
    });
    return h("label", { class: "slider seed" }, h("span", {}, "seed"), input);
  }

  /** @param {boolean} dark */
  #colours(dark) {
    const box = h("input", { type: "checkbox", checked: this.has_colours, onchange: () => {
      this.has_colours = box.checked;
      legend.hidden = !box.checked;
      this.onchange();
    } });
    const legend = h("div", { class: "legend", hidden: !this.has_colours }, ...legendParts(tokenLegend(dark), "expected", "surprising"));
    return h("section", { class: "card frame", "aria-label": "Probabilities" },
      h("h2", {}, "Probabilities"),
      h("label", { class: "check" }, box, "Colour the tokens"), legend,
      h("p", { class: "about" }, "Point at a token to see its probability and the other tokens that the model considered. Click it to keep them open."));
  }
}
