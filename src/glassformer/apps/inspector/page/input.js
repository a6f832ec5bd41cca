/**
 * Text boxes, examples and the run button.
 *
 * @import { App } from "./app.js"
 * @import { Example, Message, Model, Texts } from "./types.js"
 */

import { button, fill, grow, h, insertText, sendsOn } from "./dom.js";
import { messagesOf } from "./state.js";

const MAX_HEIGHT = 180;
const MASK = "[MASK]";

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
 * @param {Texts} texts
 */
export function runBody(model, { text, ids, source, target, messages }) {
  if (isPair(model)) return { source, target: target === "" ? null : target };
  const conversation = messagesOf(messages);
  if (conversation) return { messages: conversation };
  return ids ? { ids: ids.split(",").map(Number) } : { text };
}

/**
 * Return the texts of an example for the state.
 * @param {Example} example
 */
export function textsOf({ text, ids, source, target, messages }) {
  return {
    text: text ?? "", ids: ids?.join(",") ?? "", source: source ?? "", target: target ?? "",
    messages: messages ? JSON.stringify(messages) : "",
  };
}

/** Return a text with the line ends of a text box. @param {string} text */
const boxLineEnds = (text) => text.replace(/\r\n?/g, "\n");

/**
 * Create the boxes of the model in a section of the page.
 * @param {App} app
 * @param {HTMLElement} section
 */
export function createInput(app, section) {
  const { store } = app;

  /** @param {"text" | "source" | "target" | "messages"} key @param {string} label @param {string} placeholder */
  function box(key, label, placeholder) {
    const area = h("textarea", {
      rows: 1, placeholder, dir: "auto", "aria-label": label, spellcheck: "false", title: `${label}. Press Ctrl+Enter to run.`,
      oninput: () => edited(key, area),
      onkeydown: sendsOn("Ctrl+Enter", submit),
    });
    return { key, area };
  }

  /** @type {{key: "text" | "source" | "target" | "messages", area: HTMLTextAreaElement}[]} */
  let boxes = [];
  /** The messages that the boxes show; null if the boxes show texts. @type {Message[] | null} */
  let conversation = null;
  /** True if the user has edited the target since the last run. */
  let isOwnTarget = false;

  /** Clear the target after an edit of the source, unless the user has edited the target. @param {string} key @param {HTMLTextAreaElement} area */
  function edited(key, area) {
    grow(area, MAX_HEIGHT);
    const target = boxes.find((box) => box.key === "target")?.area;
    if (key === "target") isOwnTarget = true;
    else if (key === "source" && target && !isOwnTarget && area.value !== boxLineEnds(store.state.source)) target.value = "";
    mark();
  }

  /** Set `is_old` if the boxes have other texts than the shown run. */
  function mark() {
    const { ran, run } = store.state;
    const isOther = Object.entries(boxTexts()).some(([key, text]) => boxLineEnds(text) !== boxLineEnds(ran?.[/** @type {keyof Texts} */ (key)] ?? ""));
    store.set({ is_old: Boolean(run && ran) && isOther });
  }

  /** Return the texts of the boxes. If a box differs from the state only in line ends, keep the text of the state. @returns {Omit<Texts, "ids">} */
  function boxTexts() {
    const { text, source, target, messages } = store.state;
    const texts = { text, source, target, messages };
    const kept = (/** @type {string} */ before, /** @type {string} */ now) => (now === boxLineEnds(before) ? before : now);
    if (!conversation) {
      for (const { key, area } of boxes) texts[key] = kept(texts[key], area.value);
      return texts;
    }
    const now = conversation.map((message, i) => ({ ...message, content: kept(message.content, boxes[i]?.area.value ?? "") }));
    const isSame = now.every(({ content }, i) => content === conversation?.[i]?.content);
    return { ...texts, messages: isSame ? messages : JSON.stringify(now) };
  }

  function submit() {
    const texts = boxTexts();
    const isSame = Object.entries(texts).every(([key, value]) => value === store.state[/** @type {keyof Texts} */ (key)]);
    store.set({ ...texts, ids: isSame ? store.state.ids : "", pos: -1 });
    conversation = conversation && messagesOf(store.state.messages);
    isOwnTarget = false;
    app.submit();
  }

  /** Return the button of an example: the beginning of its text in one line, with marks in place of line ends. @param {Example} example */
  function exampleButton(example) {
    const text = example.text ?? example.source ?? (example.messages ?? []).map(({ role, content }) => `${role}: ${content}`).join("\n");
    const line = text.trim().replace(/\s*\n\s*/g, " ↵ ").replace(/\s+/g, " ");
    return button(line.length > 44 ? `${line.slice(0, 43)}…` : line, () => void app.use(example), { title: text });
  }

  /** Let the boxes have the height of their texts: a hidden box has none. */
  const fit = () => boxes.forEach(({ area }) => grow(area, MAX_HEIGHT));

  /** Write the texts of the state into the boxes. */
  function write() {
    for (const [i, { key, area }] of boxes.entries()) area.value = conversation?.[i]?.content ?? store.state[key];
    fit();
    isOwnTarget = false;
    mark();
  }

  function draw() {
    const { model } = store.state;
    if (!model) return;
    conversation = isPair(model) ? null : messagesOf(store.state.messages);
    if (conversation) boxes = conversation.map(({ role }, i) => box("messages", `Message ${i + 1} of the ${role}`, ""));
    else boxes = isPair(model)
      ? [box("source", "Source", "source text"), box("target", "Target", "target text (optional: without it, the model writes one)")]
      : [box("text", "Text", model.verb === "fill" ? "text with [MASK] in place of a word" : "text")];
    const areas = boxes.map(({ area }) => area);
    const content = conversation ? [h("div", { class: "messages" }, ...conversation.flatMap(({ role }, i) => [h("span", {}, role), areas[i] ?? null]))] : areas;
    fill(section,
      h("div", { class: `texts${content.length > 1 ? " is-pair" : ""}` }, ...content,
        button("Run", submit, { class: "primary", title: "Ctrl+Enter" })),
      h("div", { class: "row" },
        model.examples.length ? h("div", { class: "examples" }, "examples", ...model.examples.map(exampleButton)) : null,
        conversation ? button("as text", () => showBoxes(""), { class: "quiet", title: "Write a text in place of messages" }) : null,
        model.has_template && !conversation && !isPair(model)
          ? button("as message", () => showBoxes(JSON.stringify([{ role: "user", content: boxes[0]?.area.value ?? "" }])), {
            class: "quiet", title: "Read the text as a user message, with the chat template of the model",
          }) : null,
        model.mask && model.verb === "fill" ? button(`insert ${MASK}`, () => boxes[0] && insertText(boxes[0].area, MASK), { class: "quiet" }) : null));
    write();
  }

  /** Switch between boxes for messages and a box for a text. @param {string} messages */
  function showBoxes(messages) {
    store.set({ messages });
    draw();
    boxes[0]?.area.focus();
  }

  return { draw, mark, fit };
}
