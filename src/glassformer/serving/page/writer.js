/**
 * Writes one answer at a time, draws it meanwhile, and keeps the page at its end.
 *
 * @import { App } from "./app.js"
 * @import { Answer, Part } from "./answer.js"
 */

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
    this.running = new AbortController();
    this.mark(true);
    this.app.speak("The model is writing.");
    let isQueued = false;
    const frame = () => {
      isQueued = false;
      const isAtEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
      draw();
      if (isAtEnd) scrollTo({ top: document.documentElement.scrollHeight });
    };
    await write(answer, {
      ...request, signal: this.running.signal,
      onchange: () => {
        if (!isQueued) requestAnimationFrame(frame);
        isQueued = true;
      },
    });
    this.running = null;
    this.mark(false);
    this.app.speak(answer.problem || `The answer is complete: ${answer.text}`);
  }
}
