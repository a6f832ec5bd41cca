/**
 * Links between all panels: an element with `data-side` and `data-index` belongs to a token. The token under the pointer
 * or with the focus is highlighted everywhere; a click selects its position.
 *
 * @import { Place, Side } from "./types.js"
 * @import { Store } from "./state.js"
 */

import { mainSide, markedPlaces } from "./state.js";

/** Return the token of an element. @param {EventTarget | null} target */
function placeOf(target) {
  const element = /** @type {HTMLElement | SVGElement | null | undefined} */ (target instanceof Element ? target.closest("[data-side]") : null);
  const { side, index, acrossSide, across } = element?.dataset ?? {};
  if (!side || index === undefined) return null;
  return {
    hover: { side: /** @type {Side} */ (side), index: Number(index) },
    across: acrossSide ? { side: /** @type {Side} */ (acrossSide), index: Number(across) } : null,
  };
}

/**
 * Listen to the pointer and the focus in the whole page.
 * @param {Store} store
 */
export function linkTokens(store) {
  /** @param {Event} event */
  const enter = (event) => {
    const found = placeOf(event.target) ?? { hover: null, across: null };
    if (!found.hover && event.target instanceof Element && event.target.closest("canvas")) return;
    if (!isEqual(store.state.hover, found.hover) || !isEqual(store.state.across, found.across)) store.set(found);
  };
  document.addEventListener("pointerover", enter);
  document.addEventListener("focusin", enter);
  document.addEventListener("pointerleave", () => store.set({ hover: null, across: null }));
  document.addEventListener("click", (event) => {
    const found = placeOf(event.target);
    if (found) selectPlace(store, found.hover);
  });
  store.subscribe((changed) => {
    if (["hover", "across", "lit"].some((key) => changed.has(key))) markTokens(store);
  });
}

/**
 * Select the position of a token. A source token of a pair has no position.
 * @param {Store} store
 * @param {Place} place
 */
export function selectPlace(store, place) {
  if (place.side === mainSide(store.state) || (place.side === "written" && mainSide(store.state) === "target")) {
    store.set({ pos: place.index, lit: null });
  }
}

/** @param {Place | null} a @param {Place | null} b */
const isEqual = (a, b) => a?.side === b?.side && a?.index === b?.index;

/** @type {Element[]} */
let marked = [];

/**
 * Highlight all elements of the tokens under the pointer.
 * @param {Store} store
 */
export function markTokens(store) {
  for (const element of marked) element.classList.remove("is-linked");
  marked = markedPlaces(store.state).filter((place) => place !== null).flatMap(({ side, index }) => {
    const sides = side === "source" ? ["source"] : ["target", "written"];
    const selectors = sides.map((one) => `[data-side="${one}"][data-index="${index}"], [data-across-side="${one}"][data-across="${index}"]`);
    return [...document.querySelectorAll(selectors.join())];
  });
  for (const element of marked) element.classList.add("is-linked");
}
