/**
 * Forms: a text box that sends a text or stops the answer, a form for requests without a stream, with the result below it,
 * and the form that asks for the key of the server.
 *
 * @import { App, View } from "./main.js"
 */

import { button, fill, grow, h, sendsOn } from "../../inspector/page/dom.js";
import { Latest } from "../../inspector/page/app.js";
import { ServerError } from "../../inspector/page/source.js";
import { post } from "./requests.js";

/** Largest height of a text box in pixels. */
export const MAX_HEIGHT = 240;

/** @typedef {{label: string, placeholder: string, action: string, keys: "Enter" | "Ctrl+Enter"}} Words */

/** The text box. `keys` send its text, and Escape stops the answer. */
export class Composer {
  /**
   * @param {Words} words
   * @param {(text: string) => void} send
   * @param {() => void} stop
   */
  constructor({ label, placeholder, action, keys }, send, stop) {
    this.area = h("textarea", {
      rows: 1, placeholder, "aria-label": label, enterkeyhint: keys === "Enter" ? "send" : undefined,
      oninput: () => grow(this.area, MAX_HEIGHT),
      onkeydown: sendsOn(keys, () => this.#submit()),
    });
    this.send = send;
    this.sendButton = button(action, () => this.#submit(), { class: "primary", title: keys });
    this.stopButton = button("Stop", stop, { hidden: true, title: "Escape" });
    this.element = h("div", { class: "composer card" }, this.area, this.sendButton, this.stopButton);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented && !this.stopButton.hidden && this.element.isConnected) stop();
    });
  }

  #submit() {
    if (!this.sendButton.hidden && this.area.value.trim()) this.send(this.area.value);
  }

  /** Show the button that stops, or the one that sends. @param {boolean} isBusy */
  mark(isBusy) {
    const hadFocus = document.activeElement === this.sendButton || document.activeElement === this.stopButton;
    this.sendButton.hidden = isBusy;
    this.stopButton.hidden = !isBusy;
    if (hadFocus) (isBusy ? this.stopButton : this.sendButton).focus();
  }

  /** @param {string} text */
  fill(text) {
    this.area.value = text;
    grow(this.area, MAX_HEIGHT);
  }
}

/**
 * @typedef {{
 *   label: string, placeholder: string, action: string, controls?: (area: HTMLTextAreaElement) => HTMLElement[],
 *   ask: (text: string, area: HTMLTextAreaElement) => Promise<HTMLElement[]>,
 * }} Form
 * `label` and `placeholder` are those of the box. `ask` sends the text and returns the elements of the result.
 */

/** @param {App} app @param {Form} form @returns {View} */
export function formView(app, { label, placeholder, action, controls, ask }) {
  const area = h("textarea", {
    rows: 2, placeholder, "aria-label": label, oninput: () => grow(area, MAX_HEIGHT),
    onkeydown: sendsOn("Ctrl+Enter", () => void submit()),
  });
  const run = button(action, () => void submit(), { class: "primary", title: "Ctrl+Enter" });
  const results = h("div", { class: "panel", "aria-live": "polite" });
  const latest = new Latest(app, results);
  let ofModel = "";

  async function submit() {
    if (area.value.trim()) await latest.use(ask(area.value, area), (found) => fill(results, ...found));
  }

  const element = h("div", { class: "panel" },
    h("section", { class: "card form", "aria-label": action }, area, h("div", { class: "row" }, ...(controls?.(area) ?? []), run)), results);
  return {
    element,
    draw: () => {
      if (ofModel !== app.model.id) fill(results);
      ofModel = app.model.id;
    },
  };
}

/** Return a link that opens the inspector. @param {string} href */
export function lookLink(href) {
  const title = "Open the inspector with this text: attention, logit lens, ablation";
  return h("a", { class: "quiet look", href, target: "_blank", rel: "noopener", title }, "look inside");
}

/**
 * Return the form; `done` is called when the server has accepted the key.
 * @param {() => void} done
 */
export function keyForm(done) {
  const input = h("input", { type: "password", autocomplete: "current-password", required: true });
  const note = h("p", { class: "problem", role: "alert" });
  const submit = h("button", { type: "submit", class: "primary" }, "Open");
  const form = h("form", { class: "card key", onsubmit: async (/** @type {Event} */ event) => {
    event.preventDefault();
    submit.disabled = true;
    note.textContent = "";
    try {
      await post("session", { key: input.value.trim() });
      done();
    } catch (error) {
      note.textContent = error instanceof ServerError && error.status === 401 ? "The key is wrong." : String(error instanceof Error ? error.message : error);
      input.select();
    } finally {
      submit.disabled = false;
    }
  } },
  h("h2", {}, "This server needs a key"),
  h("p", { class: "about" }, "The browser keeps a cookie in place of the key, and no other site can use it."),
  h("label", { class: "field wide" }, h("span", {}, "key"), input), note, submit);
  requestAnimationFrame(() => input.focus());
  return form;
}
