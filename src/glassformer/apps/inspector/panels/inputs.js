/**
 * Input tokens: how much the logit of a token or label depends on each token of the input.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Side } from "../page/types.js"
 *
 * @typedef {{token?: string, against?: string, logit: number, exact: number[], estimate: number[] | null, correlation: number | null}} InputEffects
 * The tokens of a source come before those of a target. A file without Python gives no estimate.
 */

import { Latest, isQuick, withProgress } from "../page/app.js";
import { colourOf } from "../page/colours.js";
import { button, fill, h } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { divergingLegend, stripScene, tokenStrip } from "../page/strip.js";
import { fixed, signed, visible } from "../page/text.js";
import { answerFields, hasLogits, logitQuery, logitText } from "./attribution.js";

/** @type {Tab} */
export const inputsTab = { id: "inputs", title: "Input tokens", create: createInputs, exists: hasLogits, route: "/inputs" };

/** @param {App} app @returns {Panel} */
function createInputs(app) {
  const { store } = app;
  const fields = answerFields(app);
  const measure = button("Measure", () => load(), { title: "This needs one run per token and may take a while" });
  const [counted, facts, strips] = [h("span", { class: "about", "aria-live": "polite" }), h("p", { class: "detail", "aria-live": "polite" }), h("div")];
  const card = frame({
    title: "Input tokens",
    explanation: "Which tokens of the input does the prediction depend on? The effect of a token is what the logit loses if the mean embedding of the vocabulary replaces the embedding of this token. Blue: the token raises the logit. Effects do not add up to the logit, because tokens act together.",
    formula: "effect = logit − logit with the mean embedding; estimate = gradient · (embedding − mean embedding)",
    picture: () => found && {
      name: "input-tokens", data: () => found, scene: () => stripScene(sides().map(([side, items]) => ({ title: side, items }))),
      table: () => ({ header: ["position", "token", "effect", "estimate"], rows: tokens().map(({ text, place }, i) => [place.index, text, found?.exact[i] ?? null, found?.estimate?.[i] ?? null]) }),
    },
  }, h("div", { class: "row" }, ...fields.elements, measure, counted), facts, strips);
  const latest = new Latest(app, strips);
  /** @type {InputEffects | null} */
  let found = null;

  /** Return the tokens in the order of the effects. */
  const tokens = () => /** @type {Side[]} */ (["source", "target"]).flatMap((side) => (store.state.run?.[side] ?? []).map(({ text }, index) => ({ text, place: { side, index } })));
  const limit = () => Math.max(1e-6, ...(found?.exact ?? []).map(Math.abs));

  /** Return each side of the run with its tokens, which show their effects. */
  function sides() {
    const items = tokens().map(({ text, place }, i) => {
      const [exact = 0, estimate] = [found?.exact[i], found?.estimate?.[i]];
      return { text: `${text}\u2002${signed(exact, 2)}`, place, title: `${place.index}: ${visible(text)} · effect ${signed(exact)}${estimate === undefined ? "" : ` · estimate ${signed(estimate)}`}`, colour: colourOf(exact, "diverging", [-limit(), limit()], store.state.dark) };
    });
    return /** @type {const} */ (["source", "target"]).map((side) => /** @type {const} */ ([side, items.filter(({ place }) => place.side === side)])).filter(([, of]) => of.length);
  }

  function draw() {
    const { state } = store;
    measure.hidden = found !== null;
    facts.textContent = found && `${logitText(state, found)}: ${fixed(found.logit, 2)}${found.estimate ? `; rank correlation of the effects and their estimates ${fixed(found.correlation, 2)}` : "; this file computes no gradients, so there is no estimate"}`;
    fill(strips, ...(found ? [...sides().map(([side, items]) => tokenStrip(items, side)), divergingLegend(limit(), state.dark)] : []));
    card.refresh();
  }

  function load() {
    const { run } = store.state;
    if (run) void latest.use(withProgress(app, app.data.json(run, "inputs", logitQuery(store.state)), counted), (value) => {
      found = value;
      draw();
    });
  }

  return {
    element: h("div", { class: "panel" }, card.element),
    render(changed) {
      fields.write();
      const isOther = ["run", "pos", "answer", "wrong"].some((key) => changed.has(key));
      if (isOther) {
        found = null;
        latest.cancel();
      }
      if (isOther || changed.has("dark")) draw();
      if (isOther && isQuick(app, tokens().length, tokens().length)) load();
    },
  };
}
