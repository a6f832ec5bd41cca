/**
 * The page of `glassformer serve`: the models, and a view for each of their abilities.
 *
 * @typedef {{
 *   id: string, abilities: string[], max_len: number, learned: string, n_parameters: number,
 *   defaults: Record<string, number>, special_tokens: string[],
 * }} Model
 *
 * @typedef {{
 *   model: Model, settings: Settings, details: Details, dark: boolean, say: (text: string) => void,
 *   speak: (text: string) => void, fail: (error: unknown) => void,
 * }} App
 * `say` shows a message, `speak` sends a message to screen readers only, and `fail` shows an error.
 *
 * @typedef {{element: HTMLElement, draw: () => void}} View
 * `draw` draws the view again after a change of the model, the settings or the colours.
 */

import { arrowKeys, button, byId, fill, h, refill, select } from "../../inspector/page/dom.js";
import { count } from "../../inspector/page/text.js";
import { storedDark, themeButton, useTheme } from "../../inspector/page/theme.js";
import { ServerError } from "../../inspector/page/source.js";
import { continuationView, targetView } from "./continuation.js";
import { conversationView } from "./conversation.js";
import { Details } from "./details.js";
import { keyForm } from "./form.js";
import { labelView, maskView, tagView, translationView } from "./labels.js";
import { get } from "./requests.js";
import { Settings } from "./settings.js";

/** @param {string} ability @returns {(model: Model) => boolean} */
const can = (ability) => (model) => model.abilities.includes(ability);

/** @type {{id: string, title: string, suits: (model: Model) => boolean, create: (app: App) => View, hasSettings?: boolean}[]} */
const VIEWS = [
  { id: "conversation", title: "Conversation", suits: can("chat"), create: conversationView, hasSettings: true },
  { id: "text", title: "Text", suits: (model) => can("completions")(model) && !can("translate")(model), create: continuationView, hasSettings: true },
  { id: "translation", title: "Translation", suits: can("translate"), create: translationView },
  { id: "tokens", title: "Token by token", suits: can("translate"), create: targetView, hasSettings: true },
  { id: "masks", title: "Masks", suits: can("fill_mask"), create: maskView },
  { id: "labels", title: "Labels", suits: can("classify"), create: labelView },
  { id: "tags", title: "Tags", suits: can("tag"), create: tagView },
];

function start() {
  const dark = storedDark();
  useTheme(dark);
  /** @type {Model[]} */
  let models = [];
  let viewId = "";
  /** @type {Map<string, View>} */
  const opened = new Map();
  const settings = new Settings(drawView);
  const speak = (/** @type {string} */ text) => { byId("spoken").textContent = text; };
  /** @type {App} */
  const app = { model: /** @type {any} */ (null), settings, details: new Details(speak), dark, say: (text) => write(text, false), speak, fail };

  /** @param {string} text @param {boolean} isProblem */
  function write(text, isProblem) {
    byId("status").textContent = text;
    byId("status").classList.toggle("is-problem", isProblem);
  }

  /** @param {unknown} error */
  function fail(error) {
    if (error instanceof ServerError && error.status === 401) return askForKey();
    write(error instanceof Error ? error.message : String(error), true);
    if (!(error instanceof ServerError)) console.error(error);
  }

  function askForKey() {
    fill(byId("view"), keyForm(() => void load()));
    byId("side").hidden = byId("tabs").hidden = true;
  }

  async function load() {
    try {
      models = (await get("v1/models")).data;
    } catch (error) {
      return fail(error);
    }
    write("", false);
    const view = new URLSearchParams(location.hash.slice(1));
    viewId = view.get("view") ?? "";
    use(models.find((model) => model.id === view.get("model")) ?? /** @type {Model} */ (models[0]));
    if (matchMedia("(pointer: fine)").matches) byId("view").querySelector("textarea")?.focus({ preventScroll: true });
  }

  /** Return the views of the model. */
  const views = () => VIEWS.filter((view) => view.suits(app.model));
  const chosen = () => views().find((view) => view.id === viewId) ?? views()[0];

  /** @param {Model} model */
  function use(model) {
    app.model = model;
    document.title = `${model.id} – glassformer`;
    draw();
  }

  function draw() {
    const view = chosen();
    const hash = new URLSearchParams({ model: app.model.id, ...(view ? { view: view.id } : {}) });
    history.replaceState(null, "", `#${hash}`);
    drawHeader();
    drawTabs();
    byId("side").hidden = !view?.hasSettings;
    settings.draw(app.model, view?.id === "conversation", app.dark);
    drawView();
  }

  function drawView() {
    const view = chosen();
    app.details.close();
    const endpoints = app.model.abilities.join(", ") || "none";
    if (!view) return fill(byId("view"), h("p", { class: "card empty" }, `The page has no form for this model. Its endpoints: ${endpoints}.`));
    let made = opened.get(view.id);
    if (!made) opened.set(view.id, made = view.create(app));
    if (byId("view").firstChild !== made.element) fill(byId("view"), made.element);
    made.draw();
  }

  function drawTabs() {
    byId("tabs").hidden = views().length < 2;
    const open = (/** @type {string} */ next) => {
      viewId = next;
      draw();
    };
    refill(byId("tabs"), ...views().map(({ id: one, title }) => button(title, () => open(one), {
      role: "tab", "aria-selected": String(one === chosen()?.id), "aria-controls": "view", tabindex: one === chosen()?.id ? 0 : -1,
    })));
  }

  function drawHeader() {
    const list = select("model", models.map(({ id }) => [id, id]), (id) => use(/** @type {Model} */ (models.find((model) => model.id === id))));
    list.list.value = app.model.id;
    const { n_parameters: n, max_len: length, learned } = app.model;
    const theme = themeButton(app.dark, (dark) => {
      app.dark = dark;
      draw();
    });
    const side = button("settings", () => {
      const isShown = byId("side").classList.toggle("is-open");
      side.setAttribute("aria-pressed", String(isShown));
    }, { class: "quiet only-narrow", "aria-controls": "side", "aria-pressed": String(byId("side").classList.contains("is-open")) });
    side.hidden = !chosen()?.hasSettings;
    fill(byId("header"), h("div", { class: "header-line" },
      h("h1", {}, h("span", { class: "brand" }, "glassformer")), models.length > 1 ? list.element : h("strong", {}, app.model.id),
      h("div", { class: "header-facts" }, h("span", {}, `${count(n)} parameters`), h("span", {}, `context of ${count(length)} tokens`), h("span", {}, `learned to ${learned}`)),
      h("div", { class: "header-buttons" }, side, theme)));
  }

  byId("side").append(settings.element);
  arrowKeys(byId("tabs"), "button", () => 0);
  void load();
}

start();
