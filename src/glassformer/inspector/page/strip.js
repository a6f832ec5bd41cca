/**
 * Strips of tokens with a colour each.
 *
 * @import { Place } from "./types.js"
 * @import { Rgb } from "./colours.js"
 * @import { Scene, Shape } from "./scene.js"
 */

import { css, inkOn } from "./colours.js";
import { arrowKeys, h } from "./dom.js";
import { visible } from "./text.js";
import { theme } from "./theme.js";

/** @typedef {{text: string, place: Place | null, title: string, colour: Rgb | null, onclick?: () => void}} StripItem */

/**
 * Return true if a line ends after a token: it contains a line end, and the next token is not a line end alone.
 * @param {{text: string}[]} items
 * @param {number} i
 */
export function endsLine(items, i) {
  const next = items[i + 1];
  return /\n/.test(items[i]?.text ?? "") && next !== undefined && !/^[\r\n]+$/.test(next.text);
}

/**
 * Return a list of tokens as buttons. The arrow keys move among them.
 * @param {StripItem[]} items
 * @param {string} label
 * @returns {HTMLElement}
 */
export function tokenStrip(items, label) {
  const list = h("div", { class: "token-list", role: "group", "aria-label": label });
  for (const [i, item] of items.entries()) {
    const element = h("button", {
      type: "button", class: "token", "data-side": item.place?.side, "data-index": item.place?.index, title: item.title,
      "aria-label": item.title, dir: "auto", tabindex: i ? -1 : 0, onclick: item.onclick,
    }, visible(item.text));
    if (item.colour) {
      element.style.background = css(item.colour);
      element.style.color = inkOn(item.colour);
    }
    list.append(element);
    if (endsLine(items, i)) list.append(h("br"));
  }
  arrowKeys(list, ".token", () => 0);
  return list;
}

/**
 * Return the scene of some strips.
 * @param {{title: string, items: StripItem[]}[]} strips
 * @returns {Scene}
 */
export function stripScene(strips) {
  const { ink, faint, paper, line } = theme();
  const width = 900;
  let [x, y] = [12, 12];
  /** @type {Shape[]} */
  const shapes = [];
  for (const { title, items } of strips) {
    if (title) shapes.push({ type: "text", x: 12, y: y + 12, text: title, fill: faint, size: 12 });
    if (title) y += 20;
    for (const [i, { text, colour }] of items.entries()) {
      const shown = visible(text);
      const size = [...shown].length * 7.9 + 8;
      if (x + size > width - 12) [x, y] = [12, y + 26];
      shapes.push({ type: "rect", x, y, width: size, height: 22, rx: 3, fill: colour ? css(colour) : paper, stroke: line });
      shapes.push({ type: "text", x: x + 4, y: y + 15, text: shown, size: 13, fill: colour ? inkOn(colour) : ink, mono: true });
      x += size + 2;
      if (endsLine(items, i)) [x, y] = [12, y + 26];
    }
    [x, y] = [12, y + 34];
  }
  return { width, height: y + 4, background: paper, shapes };
}
