/**
 * Tokens of the texts, coloured by a number of each token.
 *
 * @import { App, Panel } from "../page/app.js"
 * @import { Side, State, Token } from "../page/types.js"
 * @import { StripItem } from "../page/strip.js"
 */

import { scaleEnds, surprise, tokenColour, tokenLegend } from "../page/colours.js";
import { fill, h, legendParts, select } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { markTokens } from "../page/link.js";
import { mainSide, selectedPosition } from "../page/state.js";
import { stripScene, tokenStrip } from "../page/strip.js";
import { compact, fixed, percent, visible } from "../page/text.js";

const COLOURS = /** @type {[string, string][]} */ ([
  ["log_prob", "log-probability"], ["rank", "rank"], ["entropy", "entropy"], ["none", "no colour"],
]);

/** Describe a token in one line. @param {Token} token @param {number} index */
function describeToken({ text, id, bytes, is_special, log_prob, rank, entropy }, index) {
  const hexadecimal = bytes.map((byte) => byte.toString(16).padStart(2, "0").toUpperCase()).join(" ");
  return [
    `${index}: ${visible(text)}`, `id ${id}`, is_special ? "special token" : hexadecimal && `hexadecimal bytes ${hexadecimal}`,
    log_prob !== null && `log-probability ${fixed(log_prob, 2)} (${percent(Math.exp(log_prob))})`,
    rank !== null && `rank ${rank}`, entropy !== null && `entropy ${fixed(entropy, 2)} nats`,
  ].filter(Boolean).join(" · ");
}

/**
 * Return the sides that are shown, with their titles. A pair shows the written tokens in place of the target.
 * @param {State} state
 * @returns {[Side, string][]}
 */
export function shownSides({ run }) {
  if (!run) return [];
  if (run.written.length) return [["source", "Source"], ["written", "Target"]];
  return run.target.length ? [["target", ""]] : [["source", ""]];
}

/** @param {State} state @param {Side} side @returns {StripItem[]} */
function stripItems(state, side) {
  return (state.run?.[side] ?? []).map((token, index) => {
    const value = surprise(token, state.colour);
    const colour = value === null ? null : tokenColour(value, state.dark);
    return { text: token.text, place: { side, index }, title: describeToken(token, index), colour };
  });
}

/** @param {App} app @returns {Panel} */
export function createTokens(app) {
  const { store } = app;
  const lists = h("div", { class: "token-lists" });
  const detail = h("p", {
    class: "detail", "aria-live": "polite",
    title: "Hexadecimal bytes: the UTF-8 bytes of the token, two digits per byte. A special token has no bytes; the model adds or reads it as one symbol.",
  });
  const legend = h("div", { class: "legend", title: "Colours of the tokens" });
  const facts = h("p", { class: "facts" });
  const colours = select("colour", COLOURS, (colour) => store.set({ colour }));
  const card = frame({
    title: "Tokens",
    picture: () => {
      const { run } = store.state;
      const sides = shownSides(store.state);
      return run && {
        name: "tokens", data: () => Object.fromEntries(sides.map(([side]) => [side, run[side]])),
        table: () => ({
          header: ["side", "position", "text", "id", "bytes", "log-probability", "rank", "entropy", "most probable"],
          rows: sides.flatMap(([side]) => run[side].map((token, i) => [
            side, i, token.text, token.id, token.bytes.join(" "), token.log_prob, token.rank, token.entropy, token.top[0]?.[1] ?? null,
          ])),
        }),
        scene: () => stripScene(sides.map(([side, title]) => ({ title, items: stripItems(store.state, side) }))),
      };
    },
    explanation: "Hover a token to highlight it in all panels; click it to select its position. Positions count from 0.",
  }, lists, h("div", { class: "token-foot" }, detail, legend));
  card.tools.prepend(colours.element);
  card.element.classList.add("tokens");
  const about = card.element.querySelector(".about");
  about?.append(" ", facts);
  if (about) card.tools.before(about);

  function draw() {
    const { state } = store;
    fill(lists, ...shownSides(state).map(([side, title]) =>
      h("div", { class: "token-side" }, title ? h("h3", {}, title) : null, tokenStrip(stripItems(state, side), `Tokens ${title}`))));
    const { run } = state;
    facts.textContent = run?.loss === null || run?.loss === undefined ? ""
      : `${state.ablated?.run === run.run && state.panel === "ablation" ? "With all parts on: loss" : "Loss"} ${fixed(run.loss)} nats per token (${run.n_scored} tokens), perplexity ${compact(Math.exp(run.loss))}.`;
    const ends = scaleEnds(state.colour);
    legend.hidden = !ends || !shownSides(state).some(([side]) => run?.[side].some((token) => surprise(token, state.colour) !== null));
    if (ends) fill(legend, ...legendParts(tokenLegend(state.dark), ...ends));
    drawSelected();
    reserve();
    markTokens(store);
  }

  /** Reserve the height of the longest detail text, so that the page does not move under the pointer. */
  function reserve() {
    const { run } = store.state;
    const shown = detail.textContent;
    const texts = shownSides(store.state).flatMap(([side]) => (run?.[side] ?? []).map(describeToken));
    const longest = texts.sort((a, b) => b.length - a.length).slice(0, 5);
    detail.style.height = "";
    const heights = longest.map((text) => {
      detail.textContent = text;
      return detail.offsetHeight;
    });
    const height = Math.max(0, ...heights);
    detail.textContent = shown;
    if (height) detail.style.height = `${height}px`;
  }

  function drawSelected() {
    const { state } = store;
    const position = selectedPosition(state);
    for (const element of lists.querySelectorAll(".token")) {
      const { side, index } = /** @type {HTMLElement} */ (element).dataset;
      const isSelected = Number(index) === position && (side === mainSide(state) || side === "written");
      element.setAttribute("aria-pressed", String(isSelected));
      /** @type {HTMLElement} */ (element).tabIndex = isSelected || (side === "source" && mainSide(state) !== "source" && index === "0") ? 0 : -1;
    }
    drawDetail();
  }

  function drawDetail() {
    const { state } = store;
    const place = state.hover ?? { side: shownSides(state).at(-1)?.[0] ?? "target", index: selectedPosition(state) };
    const side = place.side === "target" && state.run?.written.length ? "written" : place.side;
    const token = state.run?.[side][place.index];
    detail.textContent = token ? describeToken(token, place.index) : "";
  }

  return {
    element: card.element,
    render(changed) {
      colours.list.value = store.state.colour;
      if (["run", "colour", "dark", "ablated"].some((key) => changed.has(key))) {
        draw();
        card.refresh();
      } else if (changed.has("pos")) drawSelected();
      else if (changed.has("hover")) drawDetail();
      if (changed.has("size")) reserve();
    },
  };
}
