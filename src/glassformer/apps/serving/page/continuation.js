/**
 * Continuations of a text, or targets of a source: a box, and the answers below it.
 *
 * @import { App, View } from "./main.js"
 * @import { Piece } from "./answer.js"
 * @import { Words } from "./form.js"
 */

import { button, fill, h } from "../../inspector/page/dom.js";
import { Answer, textPart } from "./answer.js";
import { Composer, lookLink } from "./form.js";
import { TOP } from "./settings.js";
import { Writer, lookAddress, lookAt } from "./writer.js";
import { Written } from "./written.js";

const PATH = "v1/completions";

/** @typedef {{prompt: string, answer: Answer, written: Written, look: string}} Continuation */

/** @param {App} app */
export const continuationView = (app) =>
  textView(app, { label: "Text", placeholder: "A text that the model continues", action: "Continue", keys: "Ctrl+Enter" }, false);

/** @param {App} app */
export const targetView = (app) => textView(app, { label: "Source", placeholder: "A text to translate", action: "Translate", keys: "Ctrl+Enter" }, true);

/** @param {App} app @param {Words} words @param {boolean} isSource true if the answer is a target of the text, not its continuation @returns {View} */
function textView(app, words, isSource) {
  const composer = new Composer(words, (text) => void go(text), () => writer.stop());
  const list = h("div", { class: "turns" });
  const writer = new Writer(app, (isBusy) => {
    composer.mark(isBusy);
    draw();
  });
  /** The answers, newest first. @type {Continuation[]} */
  const found = [];

  /** @param {string} prompt @param {Piece[]} [begun] */
  async function go(prompt, begun = []) {
    const answer = new Answer(app.model.id, begun);
    answer.seed = app.settings.nextSeed();
    /** @type {Continuation} */
    const one = { prompt, answer, look: "", written: new Written(app, answer, isSource ? null : (place, alternative) => void go(prompt, answer.with(place, alternative))) };
    found.unshift(one);
    const body = { model: app.model.id, prompt: prompt + answer.begun, logprobs: TOP, ...app.settings.body(answer.seed) };
    draw();
    await writer.write(answer, { path: PATH, body, read: textPart }, () => one.written.draw());
    if (!answer.n_new) return;
    try {
      one.look = isSource ? lookAddress(answer.model, { source: prompt, target: answer.text }) : await lookAt(PATH, body, answer);
      draw();
    } catch (error) {
      app.fail(error);
    }
  }

  function draw() {
    const isBusy = writer.running !== null;
    fill(list, ...found.map((one) => {
      const { answer, prompt, written, look } = one;
      written.draw();
      fill(written.tools,
        button("retry", () => void go(prompt), { class: "quiet", disabled: isBusy, title: "Continue the same text again" }),
        isSource ? null : button("continue", () => { composer.fill(prompt + answer.text); void go(prompt + answer.text); }, { class: "quiet", disabled: isBusy, title: "Continue after this text" }),
        look ? lookLink(look) : null);
      return h("article", { class: `card message${isSource ? "" : " is-text"}`, "aria-label": isSource ? "Target" : "Continuation" }, h("p", { class: "given", dir: "auto" }, prompt), written.element);
    }));
  }

  const element = h("div", { class: "panel" }, composer.element, list);
  return {
    element,
    draw: () => {
      for (const one of found) one.written.redraw();
      draw();
    },
  };
}
