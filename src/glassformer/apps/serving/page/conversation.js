/**
 * A conversation with a model: its messages, their versions, and the box for the next one. An edit, or another
 * answer to a message, begins a branch. All branches are kept.
 *
 * @import { Piece } from "./answer.js"
 * @import { App, View } from "./main.js"
 *
 * @typedef {{
 *   role: "root" | "user" | "assistant", text: string, answer: Answer | null, parent: Message | null, next: Message[], chosen: number,
 * }} Message
 * `next` are the versions of the next message, and `chosen` is the index of the shown version. The text of an answer is
 * in `answer`.
 */

import { button, fill, grow, h, sendsOn } from "../../inspector/page/dom.js";
import { download } from "../../inspector/page/frame.js";
import { Answer, chatPart } from "./answer.js";
import { Composer, MAX_HEIGHT, lookLink } from "./form.js";
import { TOP } from "./settings.js";
import { Writer, lookAt } from "./writer.js";
import { Written } from "./written.js";

export class Conversation {
  constructor() {
    /** @type {Message} */
    this.root = { role: "root", text: "", answer: null, parent: null, next: [], chosen: 0 };
  }

  /**
   * Return the messages that are shown. With `before`, stop before that message.
   * @param {Message} [before]
   * @returns {Message[]}
   */
  shown(before) {
    const found = [];
    for (let one = this.root.next[this.root.chosen]; one && one !== before; one = one.next[one.chosen]) found.push(one);
    return found;
  }

  /** The message that a new message follows. */
  get last() {
    return this.shown().at(-1) ?? this.root;
  }

  /**
   * Add a message after another one and show it.
   * @param {Message} parent
   * @param {"user" | "assistant"} role
   * @param {string} text
   * @param {Answer | null} [answer]
   * @returns {Message}
   */
  add(parent, role, text, answer = null) {
    /** @type {Message} */
    const message = { role, text, answer, parent, next: [], chosen: 0 };
    parent.next.push(message);
    parent.chosen = parent.next.length - 1;
    return message;
  }

  /** Return the number of a version of a message, and the number of versions. @param {Message} message */
  version({ parent }) {
    return { number: (parent?.chosen ?? 0) + 1, of: parent?.next.length ?? 1 };
  }

  /**
   * Show the version before (−1) or after (1) the one that is shown.
   * @param {Message} message
   * @param {number} step
   */
  turn({ parent }, step) {
    if (parent) parent.chosen = Math.max(0, Math.min(parent.next.length - 1, parent.chosen + step));
  }
}

const PATH = "v1/chat/completions";

/** @param {App} app @returns {View} */
export function conversationView(app) {
  const conversation = new Conversation();
  const list = h("div", { class: "turns", role: "log", "aria-live": "off", "aria-label": "Conversation" });
  const composer = new Composer({ label: "Message", placeholder: "Message", action: "Send", keys: "Enter" }, send, () => writer.stop());
  const writer = new Writer(app, (isBusy) => {
    composer.mark(isBusy);
    list.setAttribute("aria-busy", String(isBusy));
    draw();
  });
  /** The elements of answers. They are kept while other versions are shown. @type {Map<Message, Written>} */
  const answers = new Map();
  /** The message that is edited. @type {Message | null} */
  let edited = null;

  /** @param {string} text */
  function send(text) {
    composer.fill("");
    void answer(conversation.add(conversation.last, "user", text));
  }

  /**
   * Let the model answer a message. The answer begins with the given pieces.
   * @param {Message} message
   * @param {Piece[]} [begun]
   */
  async function answer(message, begun = []) {
    const found = new Answer(app.model.id, begun);
    found.seed = app.settings.nextSeed();
    const added = conversation.add(message, "assistant", "", found);
    const body = bodyOf(added, found);
    draw();
    scrollTo({ top: document.documentElement.scrollHeight });
    const written = writtenOf(added, found);
    await writer.write(found, { path: PATH, body, read: chatPart }, () => written.draw());
    if (!found.n_new) return;
    try {
      looks.set(found, await lookAt(PATH, body, found));
      draw();
    } catch (error) {
      app.fail(error);
    }
  }

  /** The address of the inspector for each answer. @type {Map<Answer, string>} */
  const looks = new Map();

  /** @param {Message} message @param {Answer} found */
  function bodyOf(message, found) {
    const { system } = app.settings;
    const before = conversation.shown(message).map((one) => ({ role: one.role, content: one.answer?.text ?? one.text }));
    const messages = [...(system.trim() ? [{ role: "system", content: system }] : []), ...before];
    const isBegun = found.begun !== "";
    if (isBegun) messages.push({ role: "assistant", content: found.begun });
    return {
      model: app.model.id, messages, continue_final_message: isBegun, truncation: "auto", logprobs: true, top_logprobs: TOP,
      ...app.settings.body(found.seed ?? 0),
    };
  }

  /** @param {Message} message @param {Answer} found */
  function writtenOf(message, found) {
    const known = answers.get(message);
    if (known) return known;
    const made = new Written(app, found, (place, alternative) => {
      if (message.parent) void answer(message.parent, found.with(place, alternative));
    });
    answers.set(message, made);
    return made;
  }

  function draw() {
    const isBusy = writer.running !== null;
    const shown = conversation.shown();
    fill(list, ...(shown.length ? shown.map((message) => article(message, isBusy)) : [empty()]));
  }

  /** @param {Message} message @param {boolean} isBusy */
  function article(message, isBusy) {
    if (message === edited) return editor(message);
    const { number, of } = conversation.version(message);
    const versions = of === 1 ? null : h("span", { class: "versions", role: "group", "aria-label": "Versions" },
      button("‹", () => turn(message, -1), { class: "quiet", "aria-label": "Version before", disabled: isBusy || number === 1 }),
      h("span", { class: "facts number" }, `${number} / ${of}`),
      button("›", () => turn(message, 1), { class: "quiet", "aria-label": "Version after", disabled: isBusy || number === of }));
    if (!message.answer) {
      const edit = button("edit", () => { edited = message; draw(); }, { class: "quiet", disabled: isBusy });
      return h("article", { class: "message is-user", "aria-label": "You" },
        h("div", { class: "bubble", dir: "auto" }, message.text), h("div", { class: "answer-foot" }, h("span", { class: "tools" }, versions, edit)));
    }
    const written = writtenOf(message, message.answer);
    written.draw();
    const look = looks.get(message.answer);
    fill(written.tools, versions,
      message.answer.finish ? button("retry", () => message.parent && void answer(message.parent), { class: "quiet", disabled: isBusy, title: "Write another answer" }) : null,
      look ? lookLink(look) : null,
      message === conversation.last && look ? button("save", save, { class: "quiet", disabled: isBusy, title: "Save the conversation with all probabilities as JSON" }) : null);
    return h("article", { class: "message", "aria-label": message.answer.model }, h("h3", {}, message.answer.model), written.element);
  }

  /** Save the messages that are shown, with the tokens of the answers. */
  function save() {
    const messages = conversation.shown().map(({ role, text, answer: found }) => (found
      ? { role, content: found.text, model: found.model, seed: found.seed, finish: found.finish, tokens: [...found.pieces.flatMap((piece) => piece.tokens), ...(found.end ? [found.end] : [])] }
      : { role, content: text }));
    download("conversation.json", new Blob([JSON.stringify({ messages }, null, 1)], { type: "application/json" }));
  }

  /** @param {Message} message @param {number} step */
  function turn(message, step) {
    conversation.turn(message, step);
    draw();
    const { next, chosen } = /** @type {Message} */ (message.parent);
    const at = conversation.shown().indexOf(/** @type {Message} */ (next[chosen]));
    const buttons = /** @type {HTMLButtonElement[]} */ ([...list.children[at]?.querySelectorAll(".versions button") ?? []]);
    if (step > 0) buttons.reverse();
    buttons.find(({ disabled }) => !disabled)?.focus();
  }

  /** @param {Message} message */
  function editor(message) {
    const events = { oninput: () => grow(area, MAX_HEIGHT), onkeydown: sendsOn("Enter", () => submit()) };
    const area = h("textarea", { "aria-label": "Edited message", ...events }, message.text);
    area.addEventListener("keydown", ({ key }) => key === "Escape" && close());
    const close = () => {
      edited = null;
      draw();
    };
    const submit = () => {
      edited = null;
      if (area.value.trim() && message.parent) void answer(conversation.add(message.parent, "user", area.value));
      else draw();
    };
    requestAnimationFrame(() => {
      grow(area, MAX_HEIGHT);
      area.focus();
    });
    return h("article", { class: "message is-user is-edited", "aria-label": "You" }, area,
      h("div", { class: "row" }, button("Send", submit, { class: "primary" }), button("Cancel", close)));
  }

  function empty() {
    return h("div", { class: "welcome" }, h("h2", {}, `Talk with ${app.model.id}`),
      h("p", { class: "about" }, "Every token of an answer shows its probability and the tokens that the model considered instead. " +
        "Choose another one, and the answer continues from there. “Look inside” opens the inspector on the conversation."));
  }

  const element = h("div", { class: "panel is-talk" }, list, composer.element);
  return {
    element,
    draw: () => {
      for (const written of answers.values()) written.redraw();
      draw();
    },
  };
}
