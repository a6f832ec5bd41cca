/**
 * Patching: the residual stream of a clean text replaces that of a corrupted text, one layer and position at a time.
 *
 * @import { App, Panel } from "./app.js"
 * @import { Patching, Picture } from "./types.js"
 */

import { Latest } from "./app.js";
import { button, h } from "./dom.js";
import { frame } from "./frame.js";
import { Heatmap } from "./heatmap.js";
import { fixed, visible } from "./text.js";

/** @typedef {"clean" | "corrupted" | "answer" | "wrong"} Field */

/** @param {App} app @returns {Panel} */
export function createPatch(app) {
  const { store } = app;
  /** @param {Field} key @param {string} label @param {string} placeholder */
  const field = (key, label, placeholder) => {
    const input = h("input", { type: "text", placeholder, spellcheck: "false", onchange: () => store.set({ [key]: input.value }),
      onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") submit(); } });
    return { key, input, element: h("label", { class: "field wide" }, h("span", {}, label), input) };
  };
  const fields = [
    field("clean", "clean text", "a text that the model continues correctly"),
    field("corrupted", "corrupted text, with the same number of tokens", "the same text with one changed word"),
    field("answer", "answer (optional)", "by default: most probable after the clean text"),
    field("wrong", "wrong answer (optional)", "by default: most probable after the corrupted text"),
  ];
  const heat = new Heatmap({ label: "Effect of patching" });
  const facts = h("p", { class: "detail" });
  const card = frame({
    title: "Patching", picture: () => picture(),
    explanation: "Which layers and positions carry the difference between two texts. 0: as with the corrupted text. 1: as with the clean text.",
    formula: "share = (patched − corrupted) / (clean − corrupted), of logit(answer) − logit(wrong)",
  }, h("div", { class: "fields" }, ...fields.map(({ element }) => element)), h("div", { class: "row" }, button("Patch", () => submit(), { class: "primary" }), facts), heat.element);
  const latest = new Latest(app, card.body);
  /** @type {Patching | null} */
  let result = null;
  heat.element.hidden = true;

  function submit() {
    store.set(Object.fromEntries(fields.map(({ key, input }) => [key, input.value])));
    load();
  }

  function load() {
    const { clean, corrupted, answer, wrong } = store.state;
    if (!clean || !corrupted) {
      app.say("Patching needs a clean and a corrupted text.");
      return;
    }
    const body = { clean, corrupted, answer: answer || null, wrong: wrong || null };
    void latest.use(app.data.once(`patch ${JSON.stringify(body)}`, () => app.source.post("/api/patch", body)), (value) => {
      app.say("");
      result = value;
      draw();
    });
  }

  function draw() {
    heat.element.hidden = !result;
    if (!result) return;
    const { layers, map, tokens_clean: clean, tokens_corrupted: corrupted } = result;
    const columns = clean.length;
    const labels = clean.map((token, i) => (token === corrupted[i] ? token : `${token}/${corrupted[i] ?? ""}`));
    facts.textContent = `answer ${visible(result.answer)}, wrong answer ${visible(result.wrong)}; difference of the logits ` +
      `${fixed(result.clean, 2)} (clean), ${fixed(result.corrupted, 2)} (corrupted)`;
    const values = map.flat();
    heat.update({
      rows: layers.length, columns, values, row_labels: layers, column_labels: labels, row_axis: "layer", plain_rows: true, column_axis: "position",
      scale: "diverging", range: [-1, 1], dark: store.state.dark, cell: [44, 24], cell_text: (row, column) => fixed(values[row * columns + column], 2),
      describe: (row, column) => `${layers[row]}, position ${column} ${visible(labels[column] ?? "")}: ${fixed(values[row * columns + column], 3)}`,
    });
    card.refresh();
  }

  /** @returns {Picture | null} */
  function picture() {
    return result ? { name: "patching", scene: () => heat.scene("Patching"), table: () => heat.table(), data: () => result } : null;
  }

  return {
    element: h("div", { class: "panel" }, card.element),
    render(changed) {
      const { state } = store;
      for (const { key, input } of fields) if (document.activeElement !== input) input.value = state[key];
      if (changed.has("panel") && !result && state.clean && state.corrupted) load();
      if (changed.has("panel") && !state.clean && state.text) fields.filter(({ key }) => key === "clean" || key === "corrupted").forEach(({ input }) => { input.value = state.text; });
      if (changed.has("dark")) draw();
    },
  };
}
