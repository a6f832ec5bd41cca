/**
 * Rows of coloured tokens, in reading order. A letter of several tokens is shown above them.
 *
 * @import { Place } from "./types.js"
 * @import { Rgb } from "./colours.js"
 * @import { Letters } from "./letters.js"
 * @import { Scene, Shape } from "./scene.js"
 */

import { colourTable, css, inkOn, painted } from "./colours.js";
import { directionOf, directionOfText, lettersOf, partText, runsOf, visualOrder } from "./letters.js";
import { arrowKeys, h, legendParts } from "./dom.js";
import { signed, visible } from "./text.js";
import { theme } from "./theme.js";

/** @typedef {{text: string, place: Place | null, title: string, colour: Rgb | null, onclick?: () => void}} StripItem */

/** Return true if a line ends after a token: it contains a line end, and the next token is not a line end alone. @param {{text: string}[]} items @param {number} i */
export function endsLine(items, i) {
  const next = items[i + 1];
  return /\n/.test(items[i]?.text ?? "") && next !== undefined && !/^[\r\n]+$/.test(next.text);
}

/** Return a list of tokens as buttons. The arrow keys move among them. @param {StripItem[]} items @param {string} label @returns {HTMLElement} */
export function tokenStrip(items, label) {
  const letters = lettersOf(items.map(({ text }) => text));
  const whole = directionOfText(letters.map(({ text }) => text).join(""));
  const list = h("div", { class: "token-list", role: "group", "aria-label": label, dir: whole });
  for (const { direction, from, to } of runsOf(letters.map(({ text }) => directionOf(text)), whole)) {
    const place = direction === whole ? list : h("span", { dir: direction });
    for (const { first, n, text } of letters.slice(from, to)) {
      const buttons = items.slice(first, first + n).map((item, i) => tokenButton(item, n > 1 ? partText(item.text) : item.text, first + i === 0));
      place.append(n > 1 ? h("span", { class: "letter" }, h("span", { class: "letter-text", dir: "auto" }, visible(text)), h("span", { class: "letter-tokens" }, ...buttons)) : buttons[0] ?? "");
      if (endsLine(items, first + n - 1)) place.append(h("br"));
    }
    if (place !== list) list.append(place);
  }
  arrowKeys(list, ".token", () => 0);
  return list;
}

/** @param {StripItem} item @param {string} text @param {boolean} isFirst */
function tokenButton({ place, title, colour, onclick }, text, isFirst) {
  return h("button", {
    type: "button", class: "token", "data-side": place?.side, "data-index": place?.index, title,
    "aria-label": title, dir: "auto", tabindex: isFirst ? 0 : -1, onclick, style: painted(colour),
  }, visible(text));
}

/** Return the legend of colours from −limit to limit. @param {number} limit @param {boolean} dark @param {string} [unit] */
export function divergingLegend(limit, dark, unit = "") {
  const colours = [0, 64, 128, 191, 255].map((i) => css(/** @type {Rgb} */ (colourTable("diverging", dark)[i])));
  return h("div", { class: "legend" }, ...legendParts(colours, `${signed(-limit, 2)}`, `${signed(limit, 2)}${unit}`));
}

const WIDTH = 900;
const LINE = 26;

/** Return the scene of some strips. @param {{title: string, items: StripItem[]}[]} strips @returns {Scene} */
export function stripScene(strips) {
  const { faint, paper } = theme();
  let y = 12;
  /** @type {Shape[]} */
  const shapes = [];
  for (const { title, items } of strips) {
    if (title) shapes.push({ type: "text", x: 12, y: (y += 20) - 8, text: title, fill: faint, size: 12 });
    const letters = lettersOf(items.map(({ text }) => text));
    const isRight = directionOfText(letters.map(({ text }) => text).join("")) === "rtl";
    for (const line of linesOf(letters, items)) {
      const width = line.reduce((sum, one) => sum + widthOf(one, items) + 2, 0);
      let x = isRight ? WIDTH - 12 - width : 12;
      for (const number of visualOrder(line.map(({ text }) => text))) {
        const one = /** @type {Letters} */ (line[number]);
        shapes.push(...letterShapes(one, items, x, y));
        x += widthOf(one, items) + 2;
      }
      y += LINE;
    }
    y += 8;
  }
  return { width: WIDTH, height: y + 4, background: paper, shapes };
}

/** @param {string} text */
const textWidth = (text) => [...text].length * 7.9 + 8;

/** Return the width of the tokens of one letter. @param {Letters} letters @param {StripItem[]} items */
function widthOf({ first, n, text }, items) {
  if (n === 1) return textWidth(visible(text));
  return Math.max(textWidth(visible(text)), items.slice(first, first + n).reduce((sum, item) => sum + textWidth(partText(item.text)), 0));
}

/** Return the letters of each line. @param {Letters[]} letters @param {StripItem[]} items */
function linesOf(letters, items) {
  /** @type {Letters[][]} */
  const lines = [[]];
  let width = 0;
  let isEnd = false;
  for (const one of letters) {
    const size = widthOf(one, items) + 2;
    const isNew = isEnd || (width + size > WIDTH - 24 && width > 0);
    if (isNew) lines.push([]);
    lines.at(-1)?.push(one);
    width = isNew ? size : width + size;
    isEnd = endsLine(items, one.first + one.n - 1);
  }
  return lines;
}

/** Return the boxes of the tokens of one letter, and the letter. @param {Letters} letters @param {StripItem[]} items @param {number} x @param {number} y @returns {Shape[]} */
function letterShapes({ first, n, text }, items, x, y) {
  const { ink, line, paper } = theme();
  const size = widthOf({ first, n, text }, items) / n;
  const boxes = items.slice(first, first + n).flatMap(({ colour, text: own }, i) => /** @type {Shape[]} */ ([
    { type: "rect", x: x + i * size, y, width: size, height: 22, rx: 3, fill: colour ? css(colour) : paper, stroke: line },
    n > 1 ? { type: "text", x: x + i * size + 4, y: y + 20, text: partText(own), size: 8, fill: colour ? inkOn(colour) : ink, mono: true } : null,
  ])).filter((shape) => shape !== null);
  const colour = items[first]?.colour;
  return [...boxes, { type: "text", x: x + 4, y: y + (n > 1 ? 11 : 15), text: visible(text), size: n > 1 ? 12 : 13, fill: colour ? inkOn(colour) : ink, mono: true }];
}
