/**
 * Frame of a picture: title, explanation, formula, and the buttons for its table and its files.
 *
 * @import { Picture } from "./types.js"
 */

import { button, fill, h } from "./dom.js";
import { savePicture } from "./export.js";
import { tableElement } from "./table.js";

/**
 * @typedef {{element: HTMLElement, body: HTMLElement, tools: HTMLElement, refresh: () => void}} Frame
 */

/**
 * Create a card with a title. Its buttons show `picture` as a table and save it; null leaves the buttons out.
 * @param {{title: string, explanation?: string, formula?: string, picture?: (() => Picture | null) | null}} options
 * @param {...(Node | null)} children
 * @returns {Frame}
 */
export function frame({ title, explanation, formula, picture }, ...children) {
  const body = h("div", { class: "frame-body" }, ...children);
  const alternative = h("div", { class: "alternative", hidden: true });
  const tools = h("div", { class: "tools" });
  const heading = h("div", { class: "frame-heading" }, h("h2", {}, title), tools);
  const about = explanation
    ? h("p", { class: "about" }, explanation, formula ? " " : null, formula ? h("span", { class: "formula" }, formula) : null)
    : null;
  const element = h("section", { class: "card frame", "aria-label": title }, heading, about, body, alternative);

  const toggle = button("table", () => {
    alternative.hidden = !alternative.hidden;
    body.hidden = !alternative.hidden;
    toggle.setAttribute("aria-pressed", String(!alternative.hidden));
    refresh();
  }, { class: "quiet", "aria-pressed": "false", title: "Show the numbers as a table" });

  /** Update the table if it is visible. */
  function refresh() {
    if (alternative.hidden) return;
    const shown = picture?.();
    fill(alternative, shown ? tableElement(shown.table()) : h("p", { class: "empty" }, "There is no data yet."));
  }

  if (picture) tools.append(toggle, saveMenu(picture));
  return { element, body, tools, refresh };
}

/** @param {() => Picture | null} picture */
function saveMenu(picture) {
  const menu = h("details", { class: "menu" }, h("summary", { class: "quiet", title: "Save what is shown" }, "save"));
  const formats = h("div", { class: "menu-items" });
  for (const format of ["svg", "png", "csv", "json"]) {
    formats.append(button(format.toUpperCase(), () => {
      const shown = picture();
      if (shown) void savePicture(shown, format);
      menu.open = false;
    }, { "data-format": format }));
  }
  menu.append(formats);
  menu.addEventListener("focusout", (event) => {
    if (!menu.contains(/** @type {Node | null} */ (event.relatedTarget))) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") menu.open = false;
  });
  return menu;
}
