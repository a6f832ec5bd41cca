/**
 * First visit: up to eight questions about the open model, answered with one click each, and a glossary with the chapter of
 * the course for each word.
 *
 * @import { App } from "./app.js"
 * @import { Answer, Question } from "./questions.js"
 * @import { Model, Run } from "./types.js"
 */

import { Latest, withProgress } from "./app.js";
import { arrowKeys, button, byId, fill, h, refill } from "./dom.js";
import { questionsOf } from "./questions.js";
import { keep, stored } from "./theme.js";

const WORDS = /** @type {[word: string, meaning: string, chapter: number | null][]} */ ([
  ["token", "A piece of text with a number (id), the unit that the model reads and writes.", 1],
  ["attention map", "A table of weights: row i contains how much token i (the query) reads from each token (the keys). The weights of a row sum to 1.", 4],
  ["head", "One of the parallel attentions of a layer. Each head has its own attention map.", 5],
  ["query, key, value", "Three vectors of a token: what it looks for, what it offers, and what it gives. The query of a token is compared with the keys of the tokens.", 5],
  ["mask", "It hides the later tokens of a text, because the model has to predict them. Their weights are 0.", 5],
  ["block, layer", "A model has several blocks of the same kind, one after the other, each with its own weights. Layer i of the attention is in block i.", 6],
  ["feed-forward", "The part of a block that computes each token alone, after the attention has mixed the tokens.", 6],
  ["norm", "It scales a vector to a common size before a part reads it.", 6],
  ["softmax", "It turns numbers into positive ones that sum to 1: exp(x) divided by the sum of all exp(x).", 2],
  ["special tokens", "[BOS], [EOS], [MASK], [CLS], [SEP]: begin and end of a text, a hidden token, the start and the end of the text of an encoder.", 1],
  ["residual stream", "The vector of a position: the embedding, to which each attention and each feed-forward adds its output.", 6],
  ["logit", "The score that the model gives to a token of its vocabulary. Softmax turns all logits into probabilities.", 2],
  ["nat", "The unit of −log p with the natural logarithm: 0.69 nats are 1 bit. −log p is 0 nats for p = 1, and 2.3 nats for p = 0.1.", 2],
  ["loss, perplexity", "The mean of −log p of the actual tokens, in nats, and its exponential.", 9],
  ["entropy", "The uncertainty of a prediction. It is 0 nats if one token has probability 1, and largest if all tokens have equal probability.", null],
]);

/** Return the list of words, which opens with a click. */
export function wordList() {
  return h("details", { class: "words" }, h("summary", { class: "quiet" }, "What do the words mean?"),
    h("dl", {}, ...WORDS.flatMap(([word, meaning, chapter]) => [h("dt", {}, word), h("dd", {}, meaning, chapter ? ` In the course: chapter ${chapter}.` : null)])));
}

/** Return true if the user has closed the first visit before. */
export const isVisitClosed = () => stored("visit") === "closed";

/** Create the card of the questions in a section of the page. @param {App} app @param {HTMLElement} section */
export function createVisit(app, section) {
  const { store, source } = app;
  const intro = h("p", { class: "about" });
  const list = h("div", { class: "question-list", role: "group", "aria-label": "Questions" });
  const seen = h("p");
  const means = h("p", { class: "about" });
  const next = button("", () => (isLast() ? change() : ask(questions()[asked + 1])), { class: "quiet go-on", title: "Go on (Space or →)" });
  const others = button("all questions", () => {
    asked = -1;
    drop();
    store.set({ lit: null });
    draw();
    list.querySelector("button")?.focus();
  }, { class: "quiet" });
  const answer = h("div", { class: "visit-answer", "aria-live": "polite" }, seen, means);
  const hint = h("span", { class: "about only-wide" }, "Space: next question");
  const counted = h("p", { class: "about", "aria-live": "polite" });
  const heading = h("h2");
  fill(section, h("div", { class: "frame-heading" }, heading,
    button("close", () => close(), { class: "quiet", title: "Close the first visit (Escape). The button “help” at the top of the page opens it again." }), intro), counted, answer, h("div", { class: "questions" }, list, next, hint, others, wordList()));
  arrowKeys(list, "button", () => 0);
  section.addEventListener("keydown", (event) => {
    const words = section.querySelector(".words");
    if (event.key === "Escape" && words instanceof HTMLDetailsElement && words.open) words.open = false;
    else if (event.key === "Escape" && !document.body.classList.contains("is-lecture")) close(); // there, Escape returns to the whole page
    else if (event.repeat && event.target === next && event.key !== "Tab") event.preventDefault(); // a held key asks once
    else if (event.key === "ArrowRight" && event.target === next) {
      event.preventDefault();
      next.click();
    }
  });

  addEventListener("keydown", (event) => {
    const isFree = event.target instanceof Element && !event.target.closest("button, a, summary, input, textarea, select, [role=region]");
    if (event.key !== " " || !isFree || !hint.offsetParent || event.defaultPrevented || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (!event.repeat) goOn();
  });

  const latest = new Latest(app, section);
  /** Index of the answered question (−1 without one), and the run of the answer. */
  let asked = -1;
  /** The panel of the answer. */
  let evidence = "";
  /** @type {Run | null} */
  let answered = null;
  const done = new Set();
  /** The model of the questions that are done. @type {Model | null} */
  let known = null;

  function questions() {
    const { model } = store.state;
    return model ? questionsOf(model, source) : [];
  }

  /** The number of the question whose answer is computed (−1 without one), and the number of questions asked. */
  let [pending, nAsked] = [-1, 0];

  /** Drop the answer that is being computed. */
  function drop() {
    latest.cancel();
    nAsked++;
    pending = -1;
  }

  const isLast = () => asked === questions().length - 1;

  /** Move to the end of the text of the model. The key that led here does not write: held, or Space again within two seconds. */
  function change() {
    const box = byId("input").querySelector("textarea");
    if (!box) return;
    const begun = Date.now();
    const ignore = (/** @type {KeyboardEvent} */ event) => {
      if (event.repeat || (event.key === " " && Date.now() - begun < 2000)) event.preventDefault();
      else box.removeEventListener("keydown", ignore);
    };
    box.addEventListener("keydown", ignore);
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  }

  function close() {
    keep("visit", "closed");
    drop();
    store.set({ visit: 0, lit: null });
    /** @type {HTMLElement | null} */ (document.querySelector("#header [aria-controls=visit]"))?.focus();
  }

  /** Show the answer to a question, and the view of the answer. @param {Question | undefined} question */
  function ask(question) {
    if (!question || pending >= 0) return;
    pending = questions().indexOf(question);
    draw();
    const number = ++nAsked;
    const request = answerTo(question).finally(() => {
      if (number !== nAsked) return; // dropped, or another question was asked
      pending = -1;
      draw();
    });
    void latest.use(request, ({ found, run, note }) => {
      if (store.state.run !== run) return;
      [asked, answered, evidence] = [questions().indexOf(question), run, found.view.panel ?? ""];
      done.add(question);
      store.set({ off: "", ...found.view, lit: found.lit, hover: null, across: null });
      write(found, note);
    });
  }

  /** The text before a question changed it, and the changed one. @type {{own: string, changed: string} | null} */
  let former = null;

  /** Run the input of a question, or the text before another question changed it; then ask. @param {Question} question */
  async function answerTo(question) {
    const isReturn = former && store.state.text === former.changed && !question.input;
    if (former && isReturn) await app.use({ text: former.own });
    const input = question.input?.(store.state);
    if (input) {
      former = store.state.ids ? null : { own: store.state.text, changed: input.text ?? "" };
      await app.use(input);
    }
    const run = /** @type {Run} */ (store.state.run);
    return { found: await withProgress(app, question.ask(app, run), counted), run, note: input ? question.note : isReturn ? "The box has your text again." : "" };
  }

  /** @param {Answer} found @param {string} [note] */
  function write({ seen: what, means: why }, note) {
    draw();
    [seen.textContent, means.textContent] = [what, note ? `${why} ${note}` : why];
    const place = [".views", "#panels"].map((name) => /** @type {HTMLElement} */ (document.querySelector(name))).find((one) => one.offsetParent);
    scrollBy({ top: (place?.getBoundingClientRect().top ?? 0) - section.offsetHeight - 8, behavior: "instant" });
    next.focus({ preventScroll: true });
  }

  function draw() {
    const all = questions();
    section.hidden = !store.state.visit || !store.state.run || !all.length;
    if (section.hidden) return section.classList.remove("is-answered");
    if (answered !== store.state.run) asked = -1;
    if (known !== store.state.model) done.clear();
    known = store.state.model;
    intro.textContent = `${all.length} ${all.length === 1 ? "question" : "questions"} about this model, one click each.`;
    refill(list, ...all.map((question, i) => button(`${i + 1}. ${question.title}`, () => ask(question), {
      "aria-pressed": String(i === asked), class: done.has(question) ? "is-done" : "", tabindex: i === Math.max(0, asked) ? 0 : -1,
    })));
    const isAnswered = asked >= 0 && (!evidence || store.state.panel === evidence); // another panel does not show the evidence
    section.classList.toggle("is-answered", isAnswered); // it stays above the panel that shows the evidence
    const shown = pending < 0 ? asked : pending; // the title of a question that is being answered
    heading.textContent = isAnswered ? `${shown + 1} of ${all.length}: ${all[shown]?.title}` : `First visit: ${all.length} ${all.length === 1 ? "question" : "questions"}`;
    intro.hidden = list.hidden = isAnswered;
    for (const one of [answer, next, others]) one.hidden = !isAnswered;
    answer.hidden ||= pending >= 0;
    hint.hidden = isLast();
    if (isLast() && document.body.classList.contains("is-lecture")) next.hidden = true; // the text is not shown there
    next.textContent = isLast() ? "Now change the text, and run it" : "next question →";
  }

  /** Ask the next question, or the first one. */
  function goOn() {
    store.set({ visit: 1 });
    ask(questions()[asked + 1]);
  }

  return { draw, goOn };
}
