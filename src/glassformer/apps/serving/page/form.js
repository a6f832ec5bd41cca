/**
 * A form for requests without a stream: a text box, a button, and the result below them.
 *
 * @import { App, View } from "./app.js"
 */

import { button, fill, grow, h } from "../../inspector/page/dom.js";
import { MAX_HEIGHT } from "./composer.js";

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
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      void submit();
    },
  });
  const run = button(action, () => void submit(), { class: "primary", title: "Ctrl+Enter" });
  const results = h("div", { class: "panel", "aria-live": "polite" });
  let ofModel = "";
  let number = 0;

  async function submit() {
    if (!area.value.trim()) return;
    const mine = ++number;
    results.setAttribute("aria-busy", "true");
    try {
      const found = await ask(area.value, area);
      if (mine !== number) return;
      app.say("");
      fill(results, ...found);
    } catch (error) {
      if (mine === number) app.fail(error);
    } finally {
      if (mine === number) results.removeAttribute("aria-busy");
    }
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

/**
 * Return a link that opens the inspector.
 * @param {string} address
 */
export function lookLink(address) {
  return h("a", {
    class: "quiet look", href: address, target: "_blank", rel: "noopener", title: "Open the inspector with this text: attention, logit lens, ablation",
  }, "look inside");
}
