/**
 * The text of an answer as tokens, with facts and buttons below it.
 *
 * @import { App } from "./main.js"
 * @import { Alternative, Answer, Token } from "./answer.js"
 */

import { painted, surprise, tokenColour } from "../../inspector/page/colours.js";
import { arrowKeys, fill, h } from "../../inspector/page/dom.js";
import { fixed } from "../../inspector/page/text.js";
import { isWritable, speed } from "./answer.js";
import { showsTokens } from "./details.js";

/** An answer on the page. */
export class Written {
  /**
   * @param {App} app
   * @param {Answer} answer
   * @param {((place: number, alternative: Alternative) => void) | null} choose continues with another token in place of
   * a piece
   */
  constructor(app, answer, choose) {
    this.app = app;
    this.answer = answer;
    this.choose = choose;
    this.text = h("div", { class: "written", role: "group", "aria-label": "Tokens of the answer", dir: "auto" });
    this.problem = h("p", { class: "problem" });
    this.note = h("p", { class: "facts" });
    this.facts = h("span", { class: "facts number" });
    this.tools = h("span", { class: "tools" });
    this.element = h("div", { class: "answer" }, this.text, this.note, this.problem, h("div", { class: "answer-foot" }, this.facts, this.tools));
    this.n_drawn = 0;
    arrowKeys(this.text, ".piece", () => 0);
  }

  /** Draw the new pieces and the facts. */
  draw() {
    const { answer } = this;
    for (const piece of answer.pieces.slice(this.n_drawn)) this.#append(piece.text, piece.tokens, this.n_drawn++, "");
    if (answer.end && !this.text.querySelector(".is-end")) this.#append("end", [answer.end], answer.pieces.length, " is-end");
    this.text.classList.toggle("is-writing", answer.finish === null);
    this.problem.textContent = answer.problem;
    this.note.textContent = answer.left_out ? `The model has not read the first ${answer.left_out} messages: they no longer fit its context.` : "";
    this.facts.textContent = answer.finish === null ? "" : factsOf(answer);
  }

  /** Draw all tokens again, in the colours of the settings. */
  redraw() {
    fill(this.text);
    this.n_drawn = 0;
    this.draw();
  }

  /** @param {string} text @param {Token[]} tokens @param {number} place @param {string} kind */
  #append(text, tokens, place, kind) {
    const log_prob = tokens.reduce((sum, token) => sum + token.log_prob, 0);
    const value = this.app.settings.has_colours ? surprise({ log_prob, rank: null, entropy: null }, "log_prob") : null;
    const style = painted(value === null ? null : tokenColour(value, this.app.dark));
    const element = h("span", { class: `piece${kind}`, tabindex: place ? -1 : 0, style }, text);
    showsTokens(element, () => ({
      tokens, can: ({ text }) => isWritable(text, this.app.model.special_tokens),
      choose: this.answer.finish !== null && this.choose ? (alternative) => this.choose?.(place, alternative) : null,
    }));
    this.text.append(element);
  }
}

/** Return the numbers of an answer, and why it ended. @param {Answer} answer */
export function factsOf(answer) {
  const isFull = answer.limit !== null && answer.n_new < answer.limit; // the server ends a text at the end of the context
  const ends = { stop: "", length: isFull ? "ended because the context is full" : "ended by the limit of new tokens", stopped: "stopped", problem: "" };
  const perSecond = speed(answer);
  return [
    answer.n_new && `${answer.n_new} token${answer.n_new === 1 ? "" : "s"}`,
    Number.isNaN(perSecond) ? "" : `${fixed(perSecond, 1)} tokens/s`,
    answer.n_new && `first after ${fixed(answer.first_s, 2)} s`,
    Number.isNaN(answer.perplexity) ? "" : `perplexity ${fixed(answer.perplexity, 2)}`,
    answer.seed === null ? "" : `seed ${answer.seed}`,
    ends[answer.finish ?? "stop"],
  ].filter(Boolean).join(" · ");
}
