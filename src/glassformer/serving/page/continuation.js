/**
 * Continuations of a text: a box, and what the model writes after its text.
 *
 * @import { App, View } from "./app.js"
 * @import { Piece } from "./answer.js"
 */

import { button, fill, h } from "../../inspector/page/dom.js";
import { Answer, textPart } from "./answer.js";
import { Composer } from "./composer.js";
import { TOP } from "./settings.js";
import { lookAt } from "./write.js";
import { Writer } from "./writer.js";
import { Written } from "./written.js";

const PATH = "v1/completions";

/** @typedef {{prompt: string, answer: Answer, written: Written, look: string}} Continuation */

/** @param {App} app @returns {View} */
export function continuationView(app) {
  const composer = new Composer({ label: "Text", placeholder: "A text that the model continues", action: "Continue", sendsOnEnter: false },
    (text) => void go(text), () => writer.stop());
  const list = h("div", { class: "messages" });
  const writer = new Writer(app, (isBusy) => {
    composer.mark(isBusy);
    draw();
  });
  /** The newest comes first. @type {Continuation[]} */
  const found = [];

  /** @param {string} prompt @param {Piece[]} [begun] */
  async function go(prompt, begun = []) {
    writer.stop();
    const answer = new Answer(app.model.id, begun);
    answer.seed = app.settings.nextSeed();
    /** @type {Continuation} */
    const one = { prompt, answer, look: "", written: new Written(app, answer, (place, alternative) => void go(prompt, answer.with(place, alternative))) };
    found.unshift(one);
    const body = { model: app.model.id, prompt: prompt + answer.begun, logprobs: TOP, ...app.settings.body(answer.seed) };
    draw();
    await writer.write(answer, { path: PATH, body, read: textPart }, () => one.written.draw());
    if (!answer.n_new) return;
    try {
      one.look = await lookAt(PATH, body, answer);
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
        button("continue", () => { composer.fill(prompt + answer.text); void go(prompt + answer.text); }, { class: "quiet", disabled: isBusy, title: "Continue after this text" }),
        look ? h("a", { class: "quiet look", href: look, target: "_blank", rel: "noopener", title: "Open the inspector with this text" }, "look inside") : null);
      return h("article", { class: "message card", "aria-label": "Continuation" }, h("p", { class: "given", dir: "auto" }, prompt), written.element);
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
