/**
 * A box for a set of texts, and a number over a set of texts beside its baseline.
 *
 * @import { App } from "../page/app.js"
 *
 * @typedef {{mean: number, deviation: number | null, quartiles: [number, number, number], baseline: number | null, is_beyond: boolean}} Beside
 * Statistics of a number over a set of texts. The baseline is the mean of the other parts.
 */

import { Latest } from "../page/app.js";
import { button, h } from "../page/dom.js";
import { fixed } from "../page/text.js";

/** Largest file in bytes, below the largest request of the server. */
const MAX_FILE = 1e6;

/**
 * Return the spread of a number over texts, with its baseline, as text; empty for one text.
 * @param {Beside | undefined} beside
 * @param {number} nTexts
 */
export function spreadText(beside, nTexts) {
  if (!beside || nTexts < 2) return "";
  const [low, middle, high] = beside.quartiles;
  return `; deviation ${fixed(beside.deviation)}, quartiles ${fixed(low)}, ${fixed(middle)}, ${fixed(high)} over ${nTexts} texts; ` +
    `mean of the others ${fixed(beside.baseline)}${beside.is_beyond ? "; beyond the baseline" : ""}`;
}

/** Header of the cells of `spreadCells`. */
export const spreadHeader = ["mean", "deviation", "25 %", "50 %", "75 %", "mean of the others", "beyond"];

/** Return the cells of a number over a set of texts. @param {Beside} beside @returns {(string | number | null)[]} */
export function spreadCells({ mean, deviation, quartiles, baseline, is_beyond }) {
  return [mean, deviation, ...quartiles, baseline, is_beyond ? "yes" : ""];
}

/**
 * Create a box for texts, one per line. Its buttons read texts from the validation data of the run or from a file.
 * @param {App} app
 * @param {string} label
 */
export function textBox(app, label) {
  const area = h("textarea", { rows: 4, spellcheck: "false", placeholder: "one text per line", "aria-label": label, oninput: () => write() });
  const count = h("span", { class: "about" });
  const file = h("input", { type: "file", accept: "text/*,.txt,.csv,.tsv", hidden: true, onchange: () => void readFile() });
  const validation = button("texts of the model", () => void readValidation(true), { class: "quiet", hidden: !app.source.answers("/api/texts") });
  const open = button("open a file", () => file.click(), { class: "quiet" });
  const element = h("div", { class: "text-set" }, h("label", { class: "field wide" }, h("span", {}, label), area), h("div", { class: "row" }, validation, open, file, count));
  const latest = new Latest(app, element);
  const lines = () => area.value.split(/\r?\n/).filter((line) => line.trim());

  function write() {
    const n = lines().length;
    count.textContent = `${n} ${n === 1 ? "text" : "texts"}`;
  }

  /** @param {string} text */
  function set(text) {
    area.value = text;
    write();
  }

  async function readFile() {
    const [chosen] = file.files ?? [];
    if (chosen && chosen.size > MAX_FILE) app.say(`${chosen.name} is larger than 1 MB, the limit of a request: choose a smaller file.`);
    else if (chosen) set(await chosen.text());
    file.value = "";
  }

  /** @param {boolean} isAsked */
  async function readValidation(isAsked) {
    const model = app.store.state.model?.id ?? "";
    await latest.use(app.data.once(`texts of ${model}`, () => app.source.get(`/api/texts?model=${encodeURIComponent(model)}`, model)), ({ lines: found }) => {
      if (found.length && (isAsked || !area.value)) set(found.join("\n"));
      else if (isAsked) app.say("The validation data of this model was not found: write texts, or open a file.");
    });
  }

  write();
  return { element, lines, readValidation };
}
