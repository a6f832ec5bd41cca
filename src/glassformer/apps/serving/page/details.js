/**
 * The small card of one token: its probability, and the other tokens that the model considered.
 *
 * @import { Alternative, Token } from "./answer.js"
 * @import { Bar } from "../../inspector/page/charts.js"
 */

import { barList } from "../../inspector/page/charts.js";
import { button, fill, h } from "../../inspector/page/dom.js";
import { fixed, percent, visible } from "../../inspector/page/text.js";

/** @typedef {{tokens: Token[], choose: ((alternative: Alternative) => void) | null, can: (alternative: Alternative) => boolean}} Shown */
/** `choose` continues the text with an alternative; null while that is not possible. */

/** @type {WeakMap<Element, () => Shown>} */
const known = new WeakMap();

/**
 * Let an element show tokens when the pointer is over it, or when it has the focus.
 * @param {HTMLElement} element
 * @param {() => Shown} shown
 */
export function showsTokens(element, shown) {
  known.set(element, shown);
}

/** The card. A click keeps it open, so that its buttons can be used. */
export class Details {
  /** @param {(text: string) => void} speak */
  constructor(speak) {
    this.speak = speak;
    this.element = h("div", { class: "details card", role: "dialog", "aria-label": "Token", hidden: true });
    document.body.append(this.element);
    /** @type {HTMLElement | null} */
    this.of = null;
    this.isKept = false;
    document.addEventListener("pointerover", ({ target, pointerType }) => this.isKept || pointerType === "touch" || this.#at(target, false));
    document.addEventListener("focusin", (event) => this.#focus(event));
    document.addEventListener("click", ({ target }) => this.#at(target, true));
    document.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("resize", () => this.close());
    addEventListener("scroll", () => this.of && this.#place(this.of), { passive: true });
  }

  close() {
    if (this.element.contains(document.activeElement)) this.of?.focus();
    this.of?.classList.remove("is-shown");
    this.of = null;
    this.isKept = false;
    this.element.hidden = true;
  }

  /** @param {EventTarget | null} target */
  #pieceOf(target) {
    const element = target instanceof HTMLElement ? target.closest(".piece") : null;
    return element instanceof HTMLElement && known.has(element) ? element : null;
  }

  /** Show the tokens of an element, or close the card if the element is outside. @param {EventTarget | null} target @param {boolean} isKept */
  #at(target, isKept) {
    const piece = this.#pieceOf(target);
    if (piece) this.#show(piece, isKept);
    else if (!this.element.contains(/** @type {Node} */ (target))) this.close();
  }

  /** @param {FocusEvent} event */
  #focus({ target }) {
    const piece = this.#pieceOf(target);
    if (piece && piece === this.of) return;
    this.#at(target, false);
    if (piece) this.speak(spoken(known.get(piece)?.().tokens ?? []));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const piece = this.#pieceOf(event.target);
    if (event.key === "Escape" && this.of) {
      event.stopPropagation();
      this.close();
    } else if (piece && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      this.#show(piece, true);
      this.element.querySelector("button")?.focus();
    }
  }

  /** @param {HTMLElement} piece @param {boolean} isKept */
  #show(piece, isKept) {
    const shown = known.get(piece)?.();
    if (!shown?.tokens.length) return;
    this.of?.classList.remove("is-shown");
    this.of = piece;
    this.isKept = isKept;
    piece.classList.add("is-shown");
    fill(this.element, ...shown.tokens.flatMap((token, i) => this.#token(token, i === shown.tokens.length - 1 ? shown : null)),
      h("p", { class: "about" }, isKept && shown.choose ? "Choose another token: the text continues from there as a new version. " : "",
        "Probabilities are those of the model itself, before temperature, top-p and top-k."));
    if (isKept) this.element.append(button("close", () => this.close(), { class: "quiet details-close", "aria-label": "Close" }));
    this.element.classList.toggle("is-kept", isKept);
    this.element.hidden = false;
    this.#place(piece);
  }

  /** @param {Token} token @param {Shown | null} shown */
  #token(token, shown) {
    const alternatives = token.top.some((one) => one.text === token.text) ? token.top : [...token.top, token];
    const rest = 1 - alternatives.reduce((sum, one) => sum + Math.exp(one.log_prob), 0);
    /** @type {Bar[]} */
    const bars = alternatives.map((one) => {
      const p = Math.exp(one.log_prob);
      const isChosen = one.text === token.text;
      const bar = { label: one.text, value: p, text: percent(p), is_marked: isChosen };
      const { choose } = shown ?? { choose: null };
      return !isChosen && choose && shown?.can(one) ? { ...bar, title: "Continue with this token", onclick: () => { this.close(); choose(one); } } : bar;
    });
    if (rest > 0.0005) bars.push({ label: "others", value: rest, text: percent(rest), title: "Sum of all other tokens of the vocabulary" });
    return [
      h("p", { class: "details-token" }, h("span", { class: "token", dir: "auto" }, visible(token.text)),
        h("strong", { class: "number" }, percent(Math.exp(token.log_prob))), h("span", { class: "facts number" }, `log p ${fixed(token.log_prob, 2)}`)),
      barList(bars),
    ];
  }

  /** Place the card below or above its token; the style sheet places it on a narrow screen. @param {HTMLElement} piece */
  #place(piece) {
    const box = [...piece.getClientRects()].at(-1) ?? piece.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = Math.max(8, Math.min(innerWidth - width - 8, box.left - 12));
    const isBelow = box.bottom + height + 8 < innerHeight || box.top < height + 8;
    const top = isBelow ? Math.min(box.bottom + 4, innerHeight - height - 8) : box.top - height - 4;
    this.element.style.setProperty("--left", `${Math.round(left)}px`);
    this.element.style.setProperty("--top", `${Math.round(Math.max(8, top))}px`);
  }
}

/** Return the sentence of a screen reader. @param {Token[]} tokens */
function spoken(tokens) {
  return tokens.map((token) => {
    const others = token.top.filter((one) => one.text !== token.text).slice(0, 3);
    const named = others.map((one) => `${visible(one.text)} ${percent(Math.exp(one.log_prob))}`);
    return `${percent(Math.exp(token.log_prob))}; others: ${named.join(", ")}`;
  }).join(". ");
}
