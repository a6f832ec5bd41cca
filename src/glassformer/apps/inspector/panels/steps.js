/**
 * Step by step: generation token by token, with branches.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Candidate } from "../page/types.js"
 *
 * @typedef {{top: Candidate[], entropy: number, never: number, text: string, logits: {shape: string, zlib: string}}} Next `never` is the probability of the tokens that are never written
 */

import { Latest } from "../page/app.js";
import { barList, barsScene } from "../page/charts.js";
import { tokenColour } from "../page/colours.js";
import { floats, fromBase64, inflate, pause } from "../page/source.js";
import { button, choice, fill, h, slider } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { labelAfter } from "../page/letters.js";
import { choose, probabilities, softmax } from "../page/sampling.js";
import { selectedPosition } from "../page/state.js";
import { tokenStrip } from "../page/strip.js";
import { fixed, percent, visible } from "../page/text.js";

/** @type {Tab} */
export const stepsTab = { id: "steps", title: "Step by step", create: createSteps, exists: (model) => model.has_head_over_tokens && model.kind !== "encoder", route: "/api/next" };

/** @typedef {{id: number, text: string, log_prob: number}} Written */
/** @typedef {{tokens: Written[], parent: number, at: number}} Branch */

/**
 * Return a branch with another token at index `at`.
 * @param {Branch} branch
 * @param {number} index number of the branch
 * @param {number} at
 * @param {Candidate} candidate
 * @returns {Branch}
 */
export function branchAt(branch, index, at, [id, text, p]) {
  return { tokens: [...branch.tokens.slice(0, at), { id, text, log_prob: Math.log(p) }], parent: index, at };
}

/**
 * Choose the next token with the sampling rules; at temperature 0, the most probable token. The probability of the
 * result is the one before the rules.
 * @param {Float32Array} logits
 * @param {string[]} names of all tokens
 * @param {import("../page/sampling.js").Sampling} sampling
 * @param {number} uniform
 * @returns {Candidate}
 */
export function chooseNext(logits, names, sampling, uniform) {
  const id = choose(probabilities(logits, sampling), uniform);
  return [id, names[id] ?? `id ${id}`, softmax(logits)[id] ?? 0];
}

/** @param {App} app @returns {Panel} */
function createSteps(app) {
  const { store } = app;
  /** @type {Branch[]} */
  let branches = [{ tokens: [], parent: -1, at: 0 }];
  let current = 0;
  /** Number of written tokens before the step that is shown. */
  let at = 0;
  let from = "end";
  let isPlaying = false;
  let speed = 4;
  /** @type {(Next & {values: Float32Array, names: string[]}) | null} */
  let next = null;
  /** Ids of the written tokens that `next` follows. */
  let nextAt = "";
  /** Resolves when all presses of "Step" so far are done. */
  let writing = Promise.resolve(true);

  const starts = choice("Begin", [["end", "after the text"], ["selected", "after the selected token"], ["start", "at the beginning"]], (value) => {
    from = value;
    reset();
  });
  const play = button("Play", () => (isPlaying ? stop() : void playOn()), { class: "primary" });
  const one = button("Step", () => void step());
  const undo = button("Back", () => goTo(Math.max(0, at - 1)));
  const clear = button("Clear", () => reset());
  const pace = slider("speed", { min: 1, max: 20, step: 1 }, (value) => { speed = value; }, (value) => `${value}/s`);
  pace.write(speed);
  const text = h("div", { class: "token-lists" });
  const candidates = h("div");
  const facts = h("p", { class: "facts", role: "status" });
  const card = frame({
    title: "Step by step", formula: "next token ~ softmax(logits / temperature), then top-k, top-p",
    explanation: "The model writes token by token. Select another token to begin a branch. The card \"Sampling rules of the steps\" has the rules.",
    picture: () => next && {
      name: `step-${at}`, scene: () => barsScene(bars(), `Candidates at step ${at}`),
      data: () => ({ at, top: next?.top, entropy: next?.entropy, text: next?.text }),
      table: () => ({ header: ["token", "probability", "probability before the rules"], rows: bars().map((bar) => [bar.label, bar.value, bar.before]) }),
    },
  }, h("div", { class: "row" }, starts.element, pace.element), h("div", { class: "row" }, play, one, undo, clear, facts), text, candidates);
  const list = h("ol", { class: "branches" });
  const branchCard = frame({
    title: "Branches", explanation: "Each choice of another token begins a branch. The number is the sum of log-probabilities.",
    picture: () => ({
      name: "branches", data: () => branches,
      table: () => ({
        header: ["branch", "from branch", "at step", "text", "log-probability"],
        rows: branches.map((one, i) => [i, one.parent < 0 ? null : one.parent, one.at, textOf(one), total(one)]),
      }),
    }),
  }, list);
  const element = h("div", { class: "panel" }, card.element, branchCard.element);
  const latest = new Latest(app, candidates);

  const branch = () => /** @type {Branch} */ (branches[current]);

  /** Ids of the prompt. */
  function prompt() {
    const { run } = store.state;
    const ids = (run?.target ?? []).map((token) => token.id);
    if (from === "start") return ids.slice(0, 1);
    return from === "selected" ? ids.slice(0, selectedPosition(store.state) + 1) : ids;
  }

  /** Return the reason why no token can be written at the shown step; empty if one can. */
  function ending() {
    const { model } = store.state;
    const last = branch().tokens[at - 1];
    if (last && model?.end_ids.includes(last.id)) return `${visible(last.text)} ends the text`;
    return model && prompt().length + at >= model.max_len ? `the context of ${model.max_len} tokens is full` : "";
  }

  function reset() {
    stop();
    branches = [{ tokens: [], parent: -1, at: 0 }];
    current = 0;
    nextAt = "";
    goTo(0);
  }

  /** @param {number} place */
  function goTo(place) {
    at = place;
    void load();
    draw();
  }

  /** Return true if the candidates belong to the shown step. */
  const isLoaded = () => next !== null && nextAt === here();
  const here = () => JSON.stringify(branch().tokens.slice(0, at).map((token) => token.id));

  /** Request the candidates after the first `at` written tokens. */
  async function load() {
    const { run } = store.state;
    if (!run?.target.length) return;
    const place = here();
    const { model } = run;
    const ids = [...prompt(), ...branch().tokens.slice(0, at).map((token) => token.id)];
    const body = { model, ids, source_ids: run.source.length ? run.source.map((token) => token.id) : null };
    if (ending()) {
      latest.cancel();
      next = null;
      draw();
      return;
    }
    await latest.use(Promise.all([app.data.once(`next ${JSON.stringify(body)}`, () => request(body)), app.data.vocabulary(model)]), ([value, names]) => {
      next = { ...value, names };
      nextAt = place;
      draw();
    });
  }

  /** @param {{model: string, ids: number[]}} body @returns {Promise<Next & {values: Float32Array}>} */
  async function request(body) {
    const answer = /** @type {Next} */ (await app.source.post("/api/next", body));
    return { ...answer, values: floats(await inflate(fromBase64(answer.logits.zlib))) };
  }

  /** Write one token, after those that are being written. @returns {Promise<boolean>} false at the end */
  function step() {
    writing = writing.then(writeOne, writeOne);
    return writing;
  }

  async function writeOne() {
    if (ending()) return false;
    if (!branch().tokens[at]) {
      if (!isLoaded()) await load();
      if (!next || !isLoaded()) return false;
    }
    const written = branch().tokens; // another branch, or step, may have been chosen meanwhile
    if (next && !written[at]) {
      const [id, name, p] = chooseNext(next.values, next.names, store.state, Math.random());
      branches[current] = { ...branch(), tokens: [...written, { id, text: name, log_prob: Math.log(p) }] };
    }
    at++;
    if (isPlaying) draw();
    else goTo(at);
    return ending() === "";
  }

  async function playOn() {
    isPlaying = true;
    draw();
    while (isPlaying && element.isConnected) {
      const [isGoing] = await Promise.all([step(), pause(1000 / speed)]);
      if (!isGoing) break;
    }
    stop();
    void load();
  }

  function stop() {
    isPlaying = false;
    draw();
  }

  /** @param {Candidate} candidate */
  function take(candidate) {
    stop();
    const written = branch().tokens;
    if (written[at]?.id === candidate[0]) return goTo(at + 1);
    const made = branchAt(branch(), current, at, candidate);
    if (at === written.length) branches[current] = { ...branch(), tokens: made.tokens };
    else current = branches.push(made) - 1;
    goTo(at + 1);
  }

  function bars() {
    const sampling = store.state;
    const top = next?.top ?? [];
    const shaped = next ? probabilities(next.values, sampling) : [];
    const chosen = branch().tokens[at]?.id;
    const before = [...(store.state.run?.target.slice(0, prompt().length) ?? []), ...branch().tokens.slice(0, at)];
    return top.slice(0, 12).map(([id, text, p]) => ({
      label: labelAfter(before, text), value: shaped[id] ?? 0, before: p, text: percent(shaped[id] ?? 0), is_marked: id === chosen,
      title: `id ${id}; probability ${percent(p)} before the sampling rules. Select it to continue with it.`, onclick: () => take([id, text, p]),
    }));
  }

  function draw() {
    const { run, dark } = store.state;
    if (!run) return;
    starts.write(from);
    play.textContent = isPlaying ? "Pause" : "Play";
    undo.disabled = at === 0;
    const before = run.target.slice(0, prompt().length);
    const written = branch().tokens;
    const shownPrompt = before.slice(-30).map((token) => token.text).join("");
    fill(text, h("p", { class: "prompt-text" }, before.length > 30 ? "… " : "", shownPrompt), tokenStrip(written.map((token, i) => ({
      text: token.text, place: null, title: `step ${i}: ${visible(token.text)}, probability ${percent(Math.exp(token.log_prob))}. Select it to see the other tokens of this step.`,
      colour: tokenColour(Math.min(1, -token.log_prob / 8), dark), onclick: () => goTo(i),
    })), "Written tokens"));
    text.querySelectorAll(".token").forEach((token, i) => token.setAttribute("aria-pressed", String(i === at)));
    const end = ending();
    one.disabled = Boolean(end);
    play.disabled = Boolean(end) && !isPlaying;
    facts.textContent = `step ${at}; ${written.length} tokens written` + (end ? `; ${end}` : next && isLoaded() ? `; entropy ${fixed(next.entropy, 2)} nats${next.never ? `; without ${percent(next.never)} on tokens that are never written, such as [PAD]: the others sum to 100 %` : ""}` : "");
    fill(candidates, barList(bars()));
    fill(list, ...branches.map((one, i) => h("li", {}, button(branchLabel(one), () => {
      stop();
      current = i;
      goTo(one.tokens.length);
    }, { class: "branch", "aria-pressed": String(i === current) }), h("span", { class: "number facts" }, fixed(total(one), 2)))));
    card.refresh();
    branchCard.refresh();
  }

  /** @param {Branch} one */
  function branchLabel(one) {
    const words = textOf(one).replaceAll("\n", "↵");
    return words === "" ? "(nothing written)" : one.parent < 0 ? words : `step ${one.at}: ${words}`;
  }

  /** @param {Branch} one */
  const textOf = (one) => one.tokens.map((token) => token.text).join("");
  /** @param {Branch} one */
  const total = (one) => one.tokens.reduce((sum, token) => sum + token.log_prob, 0);

  return {
    element,
    render(changed) {
      if (changed.has("run")) {
        from = store.state.run?.written.length ? "start" : "end";
        reset();
      } else if (changed.has("pos") && from === "selected") reset();
      else if (["temperature", "top_k", "top_p", "dark"].some((key) => changed.has(key))) draw();
    },
  };
}
