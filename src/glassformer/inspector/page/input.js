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
 * Return the body of a run: the texts of the boxes, or the ids of the text.
 * @param {Model | null} model
 * @param {{text: string, ids: string, source: string, target: string}} texts
 * @returns {Example}
 */
export function runBody(model, { text, ids, source, target }) {
  if (ids && !isPair(model)) return { ids: ids.split(",").map(Number) };
  return isPair(model) ? { source, target: target === "" ? null : target } : { text };
}

/**
 * Return a text with the line ends that a text box gives it.
 * @param {string} text
 */
function plain(text) {
  return text.replace(/\r\n?/g, "\n");
}

/**
 * Return the beginning of a text in one line, with marks in place of line ends.
 * @param {string} text
 */
function clipped(text) {
  const line = text.trim().replace(/\s*\n\s*/g, " ↵ ").replace(/\s+/g, " ");
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
      oninput: () => edited(key, area),
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
  /** True if the target was written for the source that is in its box. */
  let isOwnTarget = false;

  /** Drop a target that belongs to the former source. @param {string} key @param {HTMLTextAreaElement} area */
  function edited(key, area) {
    grow(area);
    const target = boxes.find((box) => box.key === "target")?.area;
    if (key === "target") isOwnTarget = true;
    else if (key === "source" && target && !isOwnTarget && area.value !== plain(store.state.source)) target.value = "";
    mark();
  }

  /** Note whether the results that are shown belong to another text than that of the boxes. */
  function mark() {
    const { ran, run } = store.state;
    store.set({ is_old: Boolean(run && ran) && boxes.some(({ key, area }) => area.value !== plain(ran?.[key] ?? "")) });
  }

  function submit() {
    const texts = boxes.map(({ key, area }) => [key, area.value === plain(store.state[key]) ? store.state[key] : area.value]);
    const isSame = texts.every(([key, value]) => value === store.state[/** @type {"text" | "source" | "target"} */ (key)]);
    store.set({ ...Object.fromEntries(texts), ids: isSame ? store.state.ids : "", pos: -1 });
    isOwnTarget = false;
    app.submit();
  }

  /** @param {Example} example */
  function use(example) {
    store.set({ text: example.text ?? "", ids: "", source: example.source ?? "", target: example.target ?? "", pos: -1 });
    write();
    app.submit();
  }

  /** Write the texts of the state into the boxes. */
  function write() {
    for (const { key, area } of boxes) {
      area.value = store.state[key];
      grow(area);
    }
    isOwnTarget = false;
    mark();
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

  return { draw, write, mark };
}
