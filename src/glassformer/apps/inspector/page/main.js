/**
 * Page of `glassformer inspect`: shared state, views with their panels, and the run of a text.
 *
 * @import { Session } from "../panels/start.js"
 * @import { Live } from "../panels/training.js"
 * @import { App, Panel, Tab } from "./app.js"
 * @import { Source } from "./source.js"
 * @import { Model, State, Token } from "./types.js"
 */

import { ablationTab, partNames, partOf } from "../panels/ablation.js";
import { alignmentTab } from "../panels/alignment.js";
import { attentionTab } from "../panels/attention.js";
import { attributionTab } from "../panels/attribution.js";
import { beamTab } from "../panels/beam.js";
import { createCard, summaryFacts } from "../panels/card.js";
import { compareTab } from "../panels/compare.js";
import { expertsTab } from "../panels/experts.js";
import { flowTab } from "../panels/flow.js";
import { inputsTab } from "../panels/inputs.js";
import { lensTab } from "../panels/lens.js";
import { createNext } from "../panels/next.js";
import { patchTab } from "../panels/patch.js";
import { createStart } from "../panels/start.js";
import { createSweep } from "../panels/sweep.js";
import { stepsTab } from "../panels/steps.js";
import { unitTab } from "../panels/unit.js";
import { createTokens } from "../panels/tokens.js";
import { trainingTab } from "../panels/training.js";
import { RunData } from "./app.js";
import { arrowKeys, button, byId, fill, h, refill } from "./dom.js";
import { createInput, isPair, runBody, textsOf } from "./input.js";
import { linkTokens } from "./link.js";
import { hasPython, pythonOf } from "./python.js";
import { OFFLINE, ServerError, withQuery } from "./source.js";
import { Store, decodeHash, encodeHash } from "./state.js";
import { capital, count, fixed, partWords, quoted } from "./text.js";
import { storedDark, themeButton, useTheme } from "./theme.js";
import { addressOf } from "./two.js";
import { createVisit, isVisitClosed } from "./visit.js";

/** @typedef {{id: string, title: string, tabs: Tab[]}} View A view with its panels. */

/** @type {View[]} */
const VIEWS = [
  { id: "flow", title: "Flow", tabs: [flowTab] },
  { id: "attention", title: "Attention", tabs: [alignmentTab, attentionTab] },
  { id: "why", title: "Why", tabs: [lensTab, attributionTab, inputsTab] },
  { id: "change", title: "Change", tabs: [ablationTab, patchTab] },
  { id: "write", title: "Write", tabs: [stepsTab, beamTab] },
  { id: "more", title: "More", tabs: [compareTab, unitTab, expertsTab, trainingTab] },
];
const TABS = VIEWS.flatMap(({ tabs }) => tabs);

/** Start the page with the source of its data. @param {Source} source */
export function start(source) {
  /** @type {State} */
  const state = {
    ...decodeHash(location.hash), model: null, run: null, other: null, other_run: null, hover: null, across: null, lit: null,
    dark: storedDark(), model_step: null, ablated: null, ran: null, is_old: false,
  };
  useTheme(state.dark);
  const store = new Store(state);
  const status = byId("status");
  let lastRun = 0;

  /** @type {App} */
  const app = {
    store, source, data: new RunData(source),
    say: (text) => write("", text, false),
    fail: (error) => failAt("", error),
    submit: () => void run(),
    use: async (example) => {
      store.set({ ...textsOf(example), pos: -1 });
      input.draw();
      await run();
    },
    submitRandom: () => void post({ random: true }, null, "The run shows repeated random tokens. Press Run to return to your text."),
  };

  /** Messages by panel. The message of "" belongs to the whole page. @type {Map<string, {text: string, is_problem: boolean}>} */
  const messages = new Map();

  /** @param {string} panel @param {string} text @param {boolean} isProblem */
  function write(panel, text, isProblem) {
    if (text) messages.set(panel, { text, is_problem: isProblem });
    else messages.delete(panel);
    drawStatus();
  }

  /** Show the message of the page or of the panel that is open; a problem of the page comes first. */
  function drawStatus() {
    const page = messages.get("");
    const own = messages.get(store.state.panel === "next" ? "next" : chosenTab()?.id ?? "");
    const shown = page?.is_problem ? page : own ?? page;
    if (status.textContent !== (shown?.text ?? "")) status.textContent = shown?.text ?? "";
    status.classList.toggle("is-problem", Boolean(shown?.is_problem));
  }

  /** @param {string} panel @param {unknown} error */
  function failAt(panel, error) {
    // The server no longer has the run: it was restarted, or has had many runs since
    if (error instanceof ServerError && error.message.includes("no longer kept") && Date.now() - lastRun > 5000) {
      app.data.clear(); // a restarted server counts its runs from 1 again
      return void run();
    }
    write(panel, error instanceof Error ? error.message : String(error), true);
    if (!(error instanceof ServerError)) console.error(error);
  }

  /** @type {Map<string, {panel: Panel, pending: Set<string>}>} */
  const opened = new Map();
  const always = [createTokens(app), createNext(app), createCard(app)].map((panel) => ({ panel, pending: new Set(["model", "run"]) }));
  const [tokens, next, card] = always;
  byId("tokens").append(/** @type {HTMLElement} */ (tokens?.panel.element));
  byId("side").append(/** @type {HTMLElement} */ (next?.panel.element));
  const input = createInput(app, byId("input"));
  const visit = createVisit(app, byId("visit"));

  /** Return the tabs of the model. */
  function tabs() {
    const { model } = store.state;
    return model ? TABS.filter(({ exists, route }) => exists(model) && (route === undefined || source.answers(route))) : [];
  }

  function chosenTab() {
    const known = tabs();
    return known.find((tab) => tab.id === store.state.panel) ?? known[0];
  }

  /** The panel that was open last in a view, by the id of the view. @type {Map<string, string>} */
  const lastOpen = new Map();

  /** Draw the views that the model has, and below them the panels of the chosen view if it has several. */
  function drawTabs() {
    const tab = chosenTab();
    const isNext = store.state.panel === "next"; // only on a narrow screen
    document.body.dataset.panel = isNext ? "next" : tab?.id ?? "";
    const known = tabs();
    const views = VIEWS.map((view) => ({ ...view, tabs: view.tabs.filter((one) => known.includes(one)) })).filter((view) => view.tabs.length);
    const chosen = isNext ? undefined : views.find((view) => tab && view.tabs.includes(tab));
    if (chosen && tab) lastOpen.set(chosen.id, tab.id);
    const items = views.map(({ id, title, tabs: [first, ...others] }) => {
      const last = [first, ...others].find((one) => one?.id === lastOpen.get(id)) ?? first;
      return { id, title, panel: last?.id ?? "", isChosen: id === chosen?.id, isNarrow: false };
    });
    items.splice(1, 0, { id: "next", title: "Next token", panel: "next", isChosen: isNext, isNarrow: true });
    drawList(byId("tabs"), items);
    const parts = chosen && chosen.tabs.length > 1 ? chosen.tabs : [];
    byId("parts").hidden = !parts.length;
    drawList(byId("parts"), parts.map(({ id, title }) => ({ id: `part-${id}`, title, panel: id, isChosen: id === tab?.id, isNarrow: false })));
    drawPython();
    const [off, ...others] = known.includes(ablationTab) && (isNext || tab !== ablationTab) ? partNames(store.state.off) : [];
    byId("off").hidden = off === undefined;
    if (off) refill(byId("off"), `${capital(partWords(partOf(off)))}${others.length ? ` and ${others.length} more are` : " is"} off in Change; this view shows the whole model.`,
      button("all on", () => store.set({ off: "" })), button("open Change", () => store.set({ panel: ablationTab.id })));
  }

  let isPythonShown = false;
  const pythonButton = button("Python", () => {
    isPythonShown = !isPythonShown;
    drawPython();
    if (isPythonShown) navigator.clipboard?.writeText(byId("python").textContent ?? "").then(() => app.say("The program is copied."), () => {});
  }, { class: "quiet only-wide", "aria-controls": "python", title: "Show and copy a program that computes what this panel shows" });
  byId("parts").after(pythonButton);

  /** Show the program of the open panel. */
  function drawPython() {
    const { run } = store.state;
    const id = chosenTab()?.id ?? "";
    pythonButton.hidden = !run || store.state.panel === "next" || !hasPython(store.state, id);
    pythonButton.setAttribute("aria-pressed", String(isPythonShown));
    byId("python").hidden = pythonButton.hidden || !isPythonShown;
    if (!byId("python").hidden) byId("python").textContent = pythonOf(store.state, id);
  }

  /** Draw a list of tabs, which open panels. @param {HTMLElement} place @param {{id: string, title: string, panel: string, isChosen: boolean, isNarrow: boolean}[]} items */
  function drawList(place, items) {
    refill(place, ...items.map(({ id, title, panel, isChosen, isNarrow }) => button(title, () => store.set({ panel }), {
      role: "tab", id: `tab-${id}`, "aria-selected": String(isChosen), "aria-controls": "panels", tabindex: isChosen ? 0 : -1, class: isNarrow ? "only-narrow" : "",
    })));
    const active = place.querySelector('[aria-selected="true"]');
    if (active instanceof HTMLElement) place.scrollLeft = active.offsetLeft - place.offsetLeft - 40;
  }

  /** Draw the visible panels after a change. */
  function draw() {
    document.body.classList.toggle("is-empty", !store.state.run); // before the panels measure their texts
    for (const { panel, pending } of always) flush(panel, pending, "");
    drawPython();
    visit.draw();
    const tab = chosenTab();
    if (!tab) return;
    if (!store.state.run && !tab.needs_no_run) {
      const isReading = byId("input").hasAttribute("aria-busy");
      return fill(byId("panels"), h("p", { class: "card empty" }, isReading ? "The model reads the text." : "Write a text and press Run."));
    }
    let entry = opened.get(tab.id);
    if (!entry) {
      entry = { panel: tab.create({ ...app, say: (text) => write(tab.id, text, false), fail: (error) => failAt(tab.id, error) }), pending: new Set(["model", "run", "panel"]) };
      entry.panel.element.setAttribute("role", "tabpanel");
      opened.set(tab.id, entry);
    }
    entry.panel.element.setAttribute("aria-labelledby", byId("parts").hidden ? `tab-${VIEWS.find(({ tabs: own }) => own.includes(tab))?.id}` : `tab-part-${tab.id}`);
    const place = byId("panels");
    if (place.firstChild !== entry.panel.element) {
      fill(place, entry.panel.element);
      entry.pending.add("panel");
    }
    flush(entry.panel, entry.pending, tab.id);
  }

  /** @param {Panel} panel @param {Set<string>} pending @param {string} id of the panel */
  function flush(panel, pending, id) {
    if (!pending.size) return;
    const changed = new Set(pending);
    pending.clear();
    try {
      panel.render(changed);
    } catch (error) {
      failAt(id, error);
    }
  }

  let isQueued = false;
  /** @param {Set<string>} changed */
  function changedKeys(changed) {
    if (changed.has("lit")) changed.add("hover").add("across"); // panels mark `lit` if `hover` and `across` are null
    for (const { pending } of [...always, ...opened.values()]) for (const key of changed) pending.add(key);
    if (["panel", "model", "off"].some((key) => changed.has(key))) {
      drawTabs();
      drawStatus();
    }
    if (changed.has("size")) input.fit();
    if (changed.has("model_step") || changed.has("model")) drawNewer();
    if (changed.has("card") || changed.has("visit")) drawHeader();
    if (changed.has("is_old")) document.body.classList.toggle("is-old", store.state.is_old);
    if (isQueued) return;
    isQueued = true;
    requestAnimationFrame(() => {
      isQueued = false;
      draw();
    });
  }

  /** Return what an entry of the history has: the panel, the texts of the boxes, the model; "" before the first run. */
  function entry() {
    const { run, text, ids, source: from, target, messages, checkpoint } = store.state;
    return run ? JSON.stringify([chosenTab()?.id, text, ids, from, target, messages, checkpoint]) : "";
  }
  let [hashTimer, lastEntry] = [0, ""];
  store.subscribe((changed) => {
    changedKeys(changed);
    clearTimeout(hashTimer);
    document.body.dataset.unwritten = ""; // the address does not show the view yet
    hashTimer = setTimeout(() => {
      const [hash, here] = [`#${encodeHash(store.state)}`, entry()];
      const isNew = here && lastEntry && here !== lastEntry && parent === window;
      if (hash !== location.hash && location.protocol !== "about:") history[isNew ? "pushState" : "replaceState"](null, "", hash);
      lastEntry = here;
      delete document.body.dataset.unwritten;
      dispatchEvent(new Event("view")); // for a page that contains this one in a frame; see two.js
    }, 150);
  });
  addEventListener("hashchange", () => {
    const view = decodeHash(location.hash);
    const { text, ids, source: from, target, messages, checkpoint } = store.state;
    const isOther = view.checkpoint !== "" && view.checkpoint !== checkpoint;
    store.set({ ...view, checkpoint: view.checkpoint || checkpoint, ...(isOther ? { run: null, other: null, other_run: null, ablated: null } : {}) });
    input.draw();
    const isNew = view.text !== text || view.ids !== ids || view.source !== from || view.target !== target || view.messages !== messages;
    if (isOther) void load();
    else if (isNew) void run();
  });
  /** Show the open panel alone, with larger type, or the whole page again. */
  function toggleLecture() {
    const isOn = document.body.classList.toggle("is-lecture");
    offer(isOn ? "The panel alone." : "", "whole page (key L)", toggleLecture);
    if (!isOn) drawNewer();
    changedKeys(new Set(["size"]));
    if (store.state.lit) store.set({ lit: { ...store.state.lit } }); // the panel scrolls to it again
    scrollTo(0, 0);
    /** @type {HTMLElement | null} */ (document.querySelector(".is-answered .go-on, #panels .flow-picture"))?.focus({ preventScroll: true }); // → goes on
  }
  addEventListener("keydown", ({ key, target, repeat, ctrlKey, metaKey, altKey, defaultPrevented }) => {
    const isTyped = target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
    if (isTyped || repeat || ctrlKey || metaKey || altKey) return;
    const isOn = document.body.classList.contains("is-lecture");
    const steps = document.querySelector(".is-answered") ? null : document.querySelector(`#panels .flow-${key === "ArrowLeft" ? "back" : "next"}`);
    if (isOn && !defaultPrevented && steps instanceof HTMLElement && ["ArrowLeft", "ArrowRight"].includes(key)) steps.click();
    else if (isOn && key === "ArrowRight" && !defaultPrevented) visit.goOn();
    if ((key.toLowerCase() === "l" && (isOn || store.state.run)) || (isOn && key === "Escape")) toggleLecture();
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    changedKeys(new Set(["size"]));
  });
  linkTokens(store);
  for (const id of ["tabs", "parts"]) arrowKeys(byId(id), "button:not(:disabled)", () => 0);

  function drawHeader() {
    const { model, dark } = store.state;
    const darkButton = themeButton(dark, (next) => {
      store.set({ dark: next });
      drawHeader();
    });
    const cardButton = button("model", () => store.set({ card: store.state.card ? 0 : 1 }), {
      class: "quiet", "aria-pressed": String(Boolean(store.state.card)), "aria-controls": "model-card", title: "Architecture, parameters and training curve",
    });
    const visitButton = button("help", () => store.set({ visit: store.state.visit ? 0 : 1 }), {
      class: "quiet", "aria-pressed": String(Boolean(store.state.visit)), "aria-controls": "visit", title: "Questions about the model, each answered with one click, and a glossary",
    });
    const lectureButton = button("lecture", toggleLecture, { class: "quiet only-wide", title: "Show the open panel alone, with larger type (key L)" });
    const homeButton = home && model ? button(home, () => void openHome(), { class: "quiet", title: "Choose another model" }) : null;
    const canDivide = model && source.answers("/api/beside") && parent === window;
    const twoButton = canDivide ? button("two pages", () => { location.href = `two${addressOf(store.state, store.state)}`; }, { class: "quiet only-wide", title: "Two texts, or two models, side by side in every panel" }) : null;
    const focused = byId("header").querySelector("button:focus")?.getAttribute("title");
    fill(byId("header"), h("div", { class: "header-line" },
      h("h1", {}, h("span", { class: "brand" }, "glassformer"), model?.name ?? "inspect"),
      h("div", { class: "header-facts" }, ...(model ? summaryFacts(model).map((fact) => h("span", {}, fact)) : [])),
      h("div", { class: "header-buttons" }, homeButton, twoButton, model ? visitButton : null, model ? cardButton : null, model ? lectureButton : null, darkButton)), card?.panel.element);
    if (focused) [visitButton, cardButton, darkButton].find((one) => one.title === focused)?.focus();
  }

  const openHome = () => source.get("/api/session").then(showStart).catch(app.fail);

  /** Run the texts of the state. */
  async function run() {
    const { model } = store.state;
    if (!model) return;
    const body = runBody(model, store.state);
    if (!body.messages && (body.text ?? body.source ?? body.ids ?? "") === "") {
      return app.say(model.examples.length ? "Write a text and press Run, or choose an example." : "Write a text and press Run.");
    }
    const { text, ids, source: from, target, messages } = store.state;
    await post(body, { text, ids, source: from, target, messages });
  }

  let lastPost = 0;

  /** Run an input and show the result. @param {Record<string, unknown>} body @param {State["ran"]} ran texts of the boxes that it runs @param {string} [note] */
  async function post(body, ran, note = "") {
    const { model } = store.state;
    const number = ++lastPost;
    lastRun = Date.now();
    byId("input").setAttribute("aria-busy", "true");
    if (!store.state.run) draw();
    try {
      const result = await source.post("/api/run", { ...body, model: model?.id ?? "" });
      if (number !== lastPost || store.state.model !== model) return;
      messages.clear();
      store.set({ run: result, ran, hover: null, across: null, lit: null, other_run: null, ablated: null });
      const isWritten = isPair(model) && !body.target && !body.ids && !body.random; // the model has written the target
      const target = isWritten ? `The model writes ${quoted(new TextDecoder().decode(Uint8Array.from(result.written.flatMap((/** @type {Token} */ token) => token.bytes))))}.` : "";
      app.say([note, target, result.cut, result.unknown, result.seconds > 2 ? `The run took ${fixed(result.seconds, 1)} s.` : ""].filter(Boolean).join(" "));
    } catch (error) {
      app.fail(error);
    } finally {
      if (number === lastPost) byId("input").removeAttribute("aria-busy");
      if (!store.state.run) draw();
      input.mark();
    }
  }

  /** Show a sentence with a button below the text; an empty sentence hides it. @param {string} text @param {string} [label] @param {() => void} [action] */
  function offer(text, label = "", action = () => {}) {
    byId("newer").hidden = !text;
    fill(byId("newer"), text, text ? button(label, action) : null);
  }

  /** Offer the newest model of the run if the page shows an earlier one. */
  function drawNewer() {
    const { model, model_step: newest } = store.state;
    if (model === null || newest === null || newest === model.step) return offer("");
    const openNewest = () => source.post("/api/open", { folder: model.folder }).then(({ id }) => openModel(id)).catch(app.fail);
    offer(`The page shows the model of step ${count(model.step ?? 0)}; the newest one is of step ${count(newest)}.`, `Open step ${count(newest)}`, openNewest);
  }

  /** Show another model in this tab. @param {string} checkpoint */
  function openModel(checkpoint) {
    store.set({ checkpoint, run: null, other: null, other_run: null, ablated: null, step: -1, folder: "" });
    void load();
  }

  let watchTimer = 0;

  /** Read the step of the newest model; again every 5 seconds while the run is training. */
  async function watch() {
    clearTimeout(watchTimer);
    const { model } = store.state;
    if (!model?.folder) return;
    const live = /** @type {Live} */ (await source.get(withQuery("/api/live", { since: 2 ** 52, folder: model.folder })));
    if (store.state.model !== model) return;
    store.set({ model_step: live.model_step });
    if (live.is_running) watchTimer = setTimeout(() => watch().catch(app.fail), 5000);
  }

  /** The start of the page from which models are opened: "gallery", "sweep", or "" without one. */
  let home = "";

  /** Show the gallery, a sweep, or the card of a run before its first checkpoint. @param {Session} session */
  function showStart(session) {
    document.body.classList.add("is-start");
    clearTimeout(watchTimer);
    store.set({ model: null, run: null, other: null, other_run: null, ablated: null, checkpoint: "" });
    drawHeader();
    drawStatus();
    fill(byId("panels"), (session.is_sweep ? createSweep : createStart)(app, session, (checkpoint) => {
      store.set({ ...textsOf({}), pos: -1, layer: -1, head: -1, kind: "", off: "" });
      openModel(checkpoint);
    }));
  }

  /** Return the model of this tab; offer another one if the server does not have it. @param {Session | null} session @param {string | null | undefined} wanted */
  async function modelOf(session, wanted) {
    try {
      return /** @type {Model} */ (await source.get(session ? withQuery("/api/model", { model: wanted ?? "" }) : "/api/model", wanted ?? undefined));
    } catch (error) {
      if (!session || !(error instanceof ServerError)) throw error;
      const first = session.model;
      store.set({ model: null, run: null, other: null, other_run: null });
      app.fail(error);
      if (first && first !== wanted) offer("This server has another model.", `Open ${first}`, () => openModel(first));
      else if (home) offer(`This server has a ${home}.`, `Open the ${home}`, () => showStart(session));
      return null;
    }
  }

  async function load() {
    byId("input").setAttribute("aria-busy", "true");
    try {
      const session = /** @type {Session} */ (await source.get("/api/session"));
      home = session?.gallery ? "gallery" : session?.is_sweep ? "sweep" : "";
      const wanted = store.state.checkpoint || session?.model;
      if (session && !wanted) return showStart(session);
      const model = await modelOf(session, wanted);
      if (!model) return;
      document.body.classList.remove("is-start");
      document.title = `${model.name} – glassformer inspect`;
      app.data.clear();
      if (store.state.model?.id !== model.id) opened.clear();
      /** @type {Partial<State>} */
      const patch = { model, checkpoint: model.id };
      const { text, source: from, messages } = store.state;
      const first = model.examples[0];
      if ((isPair(model) ? from : text || messages) === "" && first) Object.assign(patch, textsOf(first));
      if (parent !== window) patch.visit = 0; // two pages side by side
      else if (!store.state.panel && !isVisitClosed()) patch.visit = 1; // not if a bookmark names the panel
      store.set(patch);
      drawHeader();
      input.draw();
      drawTabs();
      await run();
      await watch();
      if (location.protocol === "about:" && store.state.run) toggleLecture(); // the cell of a notebook shows the picture first
    } catch (error) {
      app.fail(error);
    } finally {
      byId("input").removeAttribute("aria-busy");
    }
  }

  source.onoffline = (isOffline) => {
    if (isOffline) return app.fail(new ServerError(OFFLINE, 0));
    app.say("");
    void load();
  };
  drawHeader();
  void load();
}
