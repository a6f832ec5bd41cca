/**
 * Text boxes, examples and the run button.
 *
 * @import { App } from "./app.js"
 * @import { Example, Model } from "./types.js"
 */

import { button, fill, h } from "./dom.js";
import { NOT_EMBEDDED } from "./source.js";

/**
 * Return true if the model reads a source and writes a target.
 * @param {Model | null} model
 */
export function isPair(model) {
  return model?.kind === "encoder-decoder" || model?.kind === "recurrent";
}

/**
 * Return the body of a run: the texts of the boxes.
 * @param {Model | null} model
 * @param {{text: string, source: string, target: string}} texts
 * @returns {Example}
 */
export function runBody(model, { text, source, target }) {
  return isPair(model) ? { source, target: target === "" ? null : target } : { text };
}

/**
 * Return the beginning of a text in one line.
 * @param {string} text
 */
function clipped(text) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > 44 ? `${line.slice(0, 43)}…` : line;
}

/**
 * Fill a section with the boxes of the model.
 * @param {App} app
 * @param {HTMLElement} section
 */
export function createInput(app, section) {
  const { store, source } = app;
  const isFixed = source.isEmbedded;

  /** @param {"text" | "source" | "target"} key @param {string} label @param {string} placeholder */
  function box(key, label, placeholder) {
    const area = h("textarea", {
      rows: 1, placeholder, "aria-label": label, spellcheck: "false", readonly: isFixed, title: isFixed ? NOT_EMBEDDED : `${label}. Ctrl+Enter runs it.`,
      oninput: () => grow(area),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          submit();
        }
      },
    });
    return { key, area };
  }

  /** @param {HTMLTextAreaElement} area */
  function grow(area) {
    area.style.height = "auto";
    area.style.height = `${Math.min(180, area.scrollHeight + 2)}px`;
  }

  /** @type {{key: "text" | "source" | "target", area: HTMLTextAreaElement}[]} */
  let boxes = [];

  function submit() {
    store.set({ ...Object.fromEntries(boxes.map(({ key, area }) => [key, area.value])), pos: -1 });
    app.submit();
  }

  /** @param {Example} example */
  function use(example) {
    store.set({ text: example.text ?? "", source: example.source ?? "", target: example.target ?? "", pos: -1 });
    write();
    app.submit();
  }

  /** Write the texts of the state into the boxes. */
  function write() {
    for (const { key, area } of boxes) {
      area.value = store.state[key];
      grow(area);
    }
  }

  function draw() {
    const { model } = store.state;
    if (!model) return;
    boxes = isPair(model)
      ? [box("source", "Source", "source text"), box("target", "Target", "target text (optional: without it, the model writes one)")]
      : [box("text", "Text", model.verb === "fill" ? "text with [MASK] at the masked places" : "text")];
    const examples = isFixed ? source.embeddedBodies("/api/run") : model.examples;
    fill(section,
      h("div", { class: `texts${boxes.length > 1 ? " is-pair" : ""}${isFixed ? " is-fixed" : ""}` }, ...boxes.map(({ area }) => area),
        isFixed ? null : button("Run", submit, { class: "primary", title: "Ctrl+Enter" })),
      h("div", { class: "row" },
        examples.length ? h("div", { class: "examples" }, "examples", ...examples.map((example) =>
          button(clipped(example.text ?? example.source ?? ""), () => use(example), { title: example.text ?? example.source }))) : null,
        model.mask && model.verb === "fill" && !isFixed ? button(`insert [MASK]`, () => insertMask("[MASK]"), { class: "quiet" }) : null));
    write();
  }

  /** @param {string} mask */
  function insertMask(mask) {
    const area = boxes[0]?.area;
    if (!area) return;
    area.setRangeText(mask, area.selectionStart, area.selectionEnd, "end");
    area.focus();
  }

  return { draw, write };
}
