/**
 * Write one answer at a time: draw its parts, and keep the page scrolled to the end.
 *
 * @import { App } from "./app.js"
 * @import { Answer, Part } from "./answer.js"
 */

import { Problem } from "./requests.js";
import { write } from "./write.js";

/** @typedef {{path: string, body: Record<string, unknown>, read: (part: any) => Part}} Request */

export class Writer {
  /** @param {App} app @param {(isBusy: boolean) => void} mark called when an answer begins and ends */
  constructor(app, mark) {
    this.app = app;
    this.mark = mark;
    /** @type {AbortController | null} */
    this.running = null;
  }

  stop() {
    this.running?.abort();
  }

  /**
   * Write an answer; `draw` draws its new parts.
   * @param {Answer} answer
   * @param {Request} request
   * @param {() => void} draw
   */
  async write(answer, request, draw) {
    this.stop();
    const mine = new AbortController();
    this.running = mine;
    this.mark(true);
    this.app.speak("The model is writing.");
    let isQueued = false;
    const frame = () => {
      isQueued = false;
      const isAtEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
      draw();
      if (isAtEnd) scrollTo({ top: document.documentElement.scrollHeight });
    };
    const problem = await write(answer, {
      ...request, signal: mine.signal,
      onchange: () => {
        if (!isQueued) requestAnimationFrame(frame);
        isQueued = true;
      },
    });
    draw();
    if (this.running !== mine) return; // another answer has begun
    this.running = null;
    this.mark(false);
    if (problem instanceof Problem && problem.status === 401) this.app.fail(problem);
    this.app.speak(answer.problem || `The answer is complete: ${answer.text}`);
  }
}
