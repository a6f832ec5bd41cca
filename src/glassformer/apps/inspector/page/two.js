/**
 * Two pages side by side: two texts, or two models, in the same panel. Each pane is the page itself; this module gives
 * both the same view.
 *
 * The address has the views of both panes: `#a=VIEW&b=VIEW`, each as in the address of a single page.
 *
 * @import { Model, View } from "./types.js"
 */

import { button, byId, fill, h, sendsOn } from "./dom.js";
import { Source } from "./source.js";
import { DEFAULTS, decodeHash, encodeHash } from "./state.js";
import { storedDark, useTheme } from "./theme.js";

const TEXTS = ["text", "ids", "source", "target", "messages", "clean", "corrupted", "answer", "wrong", "prefix"];
const OWN = ["checkpoint", "step", "folder", "visit"];
const SHARED = Object.keys(DEFAULTS).filter((key) => !TEXTS.includes(key) && !OWN.includes(key));

/**
 * Return `view` with the panel, layer, head and other choices of `other`. With `withText`, also take over its text and
 * position.
 * @param {View} view
 * @param {View} other
 * @param {boolean} withText
 * @returns {View}
 */
export function following(view, other, withText) {
  const keys = [...SHARED.filter((key) => withText || key !== "pos"), ...(withText ? TEXTS : [])];
  const from = /** @type {Record<string, string | number>} */ (/** @type {unknown} */ (other));
  return { ...view, ...Object.fromEntries(keys.map((key) => [key, from[key]])) };
}

/**
 * Return the views of an address.
 * @param {string} hash
 * @returns {[View, View]}
 */
export function viewsOf(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  return [decodeHash(parts.get("a") ?? ""), decodeHash(parts.get("b") ?? parts.get("a") ?? "")];
}

/** Return the address of two views. @param {View} a @param {View} b */
export function addressOf(a, b) {
  return `#${new URLSearchParams({ a: encodeHash(a), b: encodeHash(b) })}`;
}

/** A page in a frame. */
class Pane {
  /** @param {string} name @param {View} view @param {Source} source @param {(what: unknown) => void} say shows an error, or the empty text */
  constructor(name, view, source, say) {
    this.view = view;
    this.source = source;
    this.say = say;
    this.folder = h("input", {
      type: "text", placeholder: "another model: its folder", "aria-label": `Folder of the ${name} model`, spellcheck: "false",
      onkeydown: sendsOn("Enter", () => void this.open()),
    });
    this.frame = h("iframe", { title: `${name} page`, src: `./#${encodeHash(view)}` });
    this.bar = h("div", { class: "pane-bar", hidden: true }, this.folder, button("Open", () => void this.open()));
    this.element = h("section", { class: "pane", "aria-label": name }, this.bar, this.frame);
  }

  /** Show another view in the frame. @param {View} view */
  show(view) {
    this.view = view;
    this.frame.contentWindow?.location.replace(`./#${encodeHash(view)}`);
  }

  /** Open the model of a folder in this pane. */
  async open() {
    try {
      const model = /** @type {Model} */ (await this.source.post("/api/beside", { folder: this.folder.value }));
      this.show({ ...this.view, checkpoint: model.id });
      this.say("");
    } catch (error) {
      this.say(error);
    }
  }
}

function start() {
  useTheme(storedDark());
  const say = (/** @type {unknown} */ what) => { byId("status").textContent = what instanceof Error ? what.message : String(what); };
  const source = new Source();
  const views = viewsOf(location.hash);
  const panes = ["first", "second"].map((name, i) => new Pane(name, /** @type {View} */ (views[i]), source, say));
  source.get("/api/session").then(({ opens_folders: opens }) => {
    for (const { bar } of panes) bar.hidden = !opens;
  }).catch(say);
  const box = (/** @type {string} */ label, /** @type {boolean} */ checked) => {
    const input = h("input", { type: "checkbox", checked, onchange: () => changed(0) });
    return { input, element: h("label", { class: "check" }, input, label) };
  };
  const [first, second] = views;
  const sameView = box("same view", true);
  const sameText = box("same text", TEXTS.every((key) => first[/** @type {keyof View} */ (key)] === second[/** @type {keyof View} */ (key)]) && first.checkpoint !== second.checkpoint);

  /** Read the view of a pane that has changed, and let the other one follow. @param {number} i */
  function changed(i) {
    const [pane, other] = [panes[i], panes[1 - i]];
    if (!pane?.frame.contentWindow || !other) return;
    pane.view = decodeHash(pane.frame.contentWindow.location.hash);
    if (sameView.input.checked) {
      const wanted = following(other.view, pane.view, sameText.input.checked);
      if (encodeHash(wanted) !== encodeHash(other.view)) other.show(wanted);
    }
    const [a, b] = panes.map((one) => one.view);
    if (a && b) history.replaceState(null, "", addressOf(a, b));
  }

  panes.forEach((pane, i) => pane.frame.addEventListener("load", () => {
    pane.frame.contentWindow?.addEventListener("view", () => changed(i));
    changed(i);
  }));
  const alone = button("one page", () => { location.href = `./#${encodeHash(/** @type {Pane} */ (panes[0]).view)}`; }, { class: "quiet" });
  fill(byId("header"), h("div", { class: "header-line" },
    h("h1", {}, h("span", { class: "brand" }, "glassformer"), "side by side"), sameView.element, sameText.element, h("div", { class: "header-buttons" }, alone)));
  fill(byId("panes"), ...panes.map((pane) => pane.element));
}

if (typeof document !== "undefined" && document.body.classList.contains("two")) start();
