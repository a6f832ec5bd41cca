/** A text box with a button that sends the text, or stops the answer. */

import { button, grow, h } from "../../inspector/page/dom.js";

/** Largest height of a text box in pixels. */
export const MAX_HEIGHT = 240;

/** @typedef {{label: string, placeholder: string, action: string, sendsOnEnter: boolean}} Words */

/** The box; Enter sends it (or Ctrl+Enter), and Escape stops. */
export class Composer {
  /**
   * @param {Words} words
   * @param {(text: string) => void} send
   * @param {() => void} stop
   */
  constructor({ label, placeholder, action, sendsOnEnter }, send, stop) {
    this.area = h("textarea", {
      rows: 1, placeholder, "aria-label": label, enterkeyhint: sendsOnEnter ? "send" : undefined,
      oninput: () => grow(this.area, MAX_HEIGHT),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        const sends = sendsOnEnter ? !event.shiftKey : event.ctrlKey || event.metaKey;
        if (event.key === "Enter" && sends && !event.isComposing) {
          event.preventDefault();
          this.#submit();
        }
      },
    });
    this.send = send;
    this.sendButton = button(action, () => this.#submit(), { class: "primary", title: sendsOnEnter ? "Enter" : "Ctrl+Enter" });
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
