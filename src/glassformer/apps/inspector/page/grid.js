/**
 * Grid of heads: one thumbnail per layer and head, with scores.
 *
 * @import { Rgb } from "./colours.js"
 * @import { State } from "./types.js"
 * @import { HeadScores, Scores } from "../panels/attention.js"
 * @import { Attributes } from "./dom.js"
 * @import { Bytes } from "./source.js"
 * @import { Scene, Shape } from "./scene.js"
 */

import { colourTable, maskedColour } from "./colours.js";
import { arrowKeys, h } from "./dom.js";
import { pixels } from "./scene.js";
import { fixed } from "./text.js";
import { theme } from "./theme.js";

const SHORT = /** @type {Record<string, string>} */ ({
  previous: "prev", induction: "induct", duplicate: "dupl", sharpness: "sharp",
});

/**
 * Return the score that a thumbnail shows: the chosen score, or that of the pattern for which the head is found, the one with the largest
 * excess over uniform attention.
 * @param {HeadScores} scores of the head
 * @param {HeadScores} uniform scores of uniform attention
 * @param {string} badge
 * @param {string[]} found patterns for which the head is found
 * @returns {{name: string, value: number} | null}
 */
export function badgeOf(scores, uniform, badge, found) {
  if (badge === "none") return null;
  if (badge !== "best") return { name: badge, value: scores[badge] ?? NaN };
  const excess = (/** @type {string} */ name) => ((scores[name] ?? 0) - (uniform[name] ?? 0)) / (1 - (uniform[name] ?? 0));
  const [best] = [...found].sort((a, b) => excess(b) - excess(a));
  return best === undefined ? null : { name: best, value: scores[best] ?? NaN };
}

/**
 * Return the thumbnail of one head.
 * @param {Bytes} thumbnails
 * @param {number} layer
 * @param {number} head
 */
export function thumbnailOf({ shape, buffer }, layer, head) {
  const [, heads = 0, rows = 0, columns = 0] = shape;
  return { values: new Uint8Array(buffer, (layer * heads + head) * rows * columns, rows * columns), rows, columns };
}

/**
 * Return the head whose rows differ most from each other: the one with the largest mutual information of query and key.
 * @param {Bytes} thumbnails
 */
export function clearestHead(thumbnails) {
  const [layers = 0, heads = 0] = thumbnails.shape;
  let [block, head, most] = [0, 0, -Infinity];
  for (let i = 0; i < layers * heads; i++) {
    const { values, rows, columns } = thumbnailOf(thumbnails, Math.floor(i / heads), i % heads);
    const means = Array.from({ length: columns }, (_, j) => values.reduce((sum, x, cell) => sum + (cell % columns === j ? x : 0), 0) / rows);
    const information = values.reduce((sum, x, cell) => sum + (x && x * Math.log(x / (means[cell % columns] ?? 1))), 0);
    if (information > most) [block, head, most] = [Math.floor(i / heads), i % heads, information];
  }
  return { block, head };
}

/**
 * Return the picture of the thumbnail of one head; keys that a decoder's mask hides are grey.
 * @param {Bytes} thumbnails
 * @param {string} kind
 * @param {number} layer
 * @param {number} head
 * @param {boolean} dark
 */
export function thumbnailPicture(thumbnails, kind, layer, head, dark) {
  const { values, rows, columns } = thumbnailOf(thumbnails, layer, head);
  const table = colourTable("sequential", dark);
  const isHidden = (/** @type {number} */ cell) => kind === "decoder" && !values[cell] && cell % columns > Math.floor(cell / columns);
  return pixels(columns, rows, (cell) => (isHidden(cell) ? maskedColour(dark) : /** @type {Rgb} */ (table[values[cell] ?? 0])));
}

/** With more layers than this, the thumbnails are smaller, so that the found heads are beside them. */
const MANY_LAYERS = 8;

/**
 * Return a grid with a button per layer (down) and head (across). The arrow keys move among the buttons.
 * @param {[layers: number, heads: number]} size
 * @param {{
 *   label: string, onopen: (layer: number, head: number) => void,
 *   content: (layer: number, head: number) => {picture: HTMLCanvasElement, badge?: Node | null, attributes: Attributes},
 * }} options `content` returns the parts of a button
 */
export function thumbGrid([layers, heads], { label, onopen, content }) {
  const isOne = layers === 1 && heads === 1;
  const style = { "--heads": String(heads), ...(layers > MANY_LAYERS ? { "--thumb": "56px" } : {}) };
  const grid = h("div", { class: `head-grid${isOne ? " is-one" : ""}`, role: "grid", "aria-label": label, style });
  const columns = Array.from({ length: heads }, (_, head) => head);
  if (!isOne) {
    grid.append(h("div", { class: "grid-row", role: "row" }, h("span", { class: "grid-corner", role: "gridcell" }),
      ...columns.map((head) => h("span", { class: "grid-label", role: "columnheader", "aria-label": `head ${head}` }, head))));
  }
  for (let layer = 0; layer < layers; layer++) {
    const number = isOne ? null : h("span", { class: "grid-label", role: "rowheader" }, layer);
    grid.append(h("div", { class: "grid-row", role: "row" }, number, ...columns.map((head) => {
      const { picture, badge, attributes } = content(layer, head);
      const own = { type: "button", class: "thumb", "aria-label": `Layer ${layer}, head ${head}`, tabindex: layer + head === 0 ? 0 : -1 };
      const onclick = () => onopen(layer, head);
      return h("span", { role: "gridcell" }, h("button", { ...own, onclick, ...attributes }, h("span", { class: "thumb-picture" }, picture), badge));
    })));
  }
  arrowKeys(grid, ".thumb", () => heads);
  return grid;
}

/**
 * Return the grid of all heads of one kind.
 * @param {{
 *   thumbnails: Bytes, scores: Scores | null, kind: string, state: State, onopen: (layer: number, head: number) => void,
 * }} options
 * @returns {HTMLElement}
 */
export function headGrid({ thumbnails, scores, kind, state, onopen }) {
  const [layers = 0, heads = 0] = thumbnails.shape;
  const foundFor = (/** @type {number} */ layer, /** @type {number} */ head) =>
    (scores?.ranked ?? []).filter((one) => one.is_found && one.kind === kind && one.layer === layer && one.head === head).map(({ name }) => name);
  const badgeAt = (/** @type {number} */ layer, /** @type {number} */ head) => {
    const ofHead = scores?.kinds[kind]?.heads[layer]?.[head];
    return ofHead && scores ? badgeOf(ofHead, scores.kinds[kind]?.uniform[layer] ?? {}, state.badge, foundFor(layer, head)) : null;
  };
  const hasBadges = Array.from({ length: layers * heads }, (_, i) => badgeAt(Math.floor(i / heads), i % heads)).some(Boolean);
  return thumbGrid([layers, heads], { label: `Heads of the ${kind} attention`, onopen, content: (layer, head) => {
    const uniform = scores?.kinds[kind]?.uniform[layer] ?? {};
    const badge = badgeAt(layer, head);
    const ofHead = Object.entries(scores?.kinds[kind]?.heads[layer]?.[head] ?? {});
    const summary = ofHead.map(([name, value]) => `${name} ${fixed(value, 2)} (uniform ${fixed(uniform[name], 2)})`).join(", ");
    return {
      picture: thumbnailPicture(thumbnails, kind, layer, head, state.dark),
      badge: badge ? h("span", { class: "badge" }, `${SHORT[badge.name] ?? badge.name} `, h("span", {}, fixed(badge.value, 2)))
        : hasBadges ? h("span", { class: "badge" }, "\u00a0") : null,
      attributes: { "aria-label": `Layer ${layer}, head ${head}. ${summary}`, title: `layer ${layer}, head ${head}${summary ? `: ${summary}` : ""}` },
    };
  } });
}

/**
 * Return the scene of all thumbnails.
 * @param {Bytes} thumbnails
 * @param {string} kind
 * @param {string} title
 * @param {boolean} dark
 * @returns {Scene}
 */
export function gridScene(thumbnails, kind, title, dark) {
  const { ink, faint, line, paper } = theme();
  const [layers = 0, heads = 0] = thumbnails.shape;
  const size = 84;
  /** @type {Shape[]} */
  const shapes = [{ type: "text", x: 8, y: 18, text: title, size: 13, fill: ink, bold: true }];
  for (let layer = 0; layer < layers; layer++) {
    shapes.push({ type: "text", x: 30, y: 62 + layer * (size + 8) + size / 2, text: String(layer), fill: faint, size: 11, anchor: "end" });
    for (let head = 0; head < heads; head++) {
      const [x, y] = [38 + head * (size + 8), 50 + layer * (size + 8)];
      if (!layer) shapes.push({ type: "text", x: x + size / 2, y: 42, text: `head ${head}`, fill: faint, size: 11, anchor: "middle" });
      const box = { x, y, width: size, height: size };
      shapes.push({ type: "image", ...box, image: thumbnailPicture(thumbnails, kind, layer, head, dark) }, { type: "rect", ...box, stroke: line });
    }
  }
  return { width: 50 + heads * (size + 8), height: 62 + layers * (size + 8), background: paper, shapes };
}
