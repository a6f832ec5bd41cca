/**
 * Let a model write one answer at a time, part by part: draw its parts, and keep the page scrolled to the end.
 *
 * @import { Answer, Part } from "./answer.js"
 * @import { App } from "./main.js"
 */

import { ServerError } from "../../inspector/page/source.js";
import { parts, post } from "./requests.js";

/**
 * Return the address of the inspector with the prompt and the answer of a request.
 * @param {string} path
 * @param {Record<string, unknown>} body
 * @param {Answer} answer
 */
export async function lookAt(path, body, answer) {
  const { prompts: [prompt] } = await post(`${path}/prompt`, body);
  const written = answer.pieces.slice(answer.n_begun).map((piece) => piece.text).join("");
  const ids = [...prompt.ids, ...answer.written.map((token) => token.id)];
  return lookAddress(answer.model, { text: prompt.text + written, ids: ids.join(",") });
}

/**
 * Return the address of the inspector with an input.
 * @param {string} model
 * @param {Record<string, string>} input
 */
export function lookAddress(model, input) {
  const name = model.split("/").map(encodeURIComponent).join("/");
  return `look/${name}/#${Object.entries(input).map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&")}`;
}

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
   * Write an answer, until it is complete, stopped or has failed; `draw` draws its new parts.
   * @param {Answer} answer
   * @param {{path: string, body: Record<string, unknown>, read: (part: any) => Part}} request whose answer is a stream
   * @param {() => void} draw
   */
  async write(answer, { path, body, read }, draw) {
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
    const begin = performance.now();
    answer.limit = typeof body.max_tokens === "number" ? body.max_tokens : null;
    /** @type {unknown} */
    let problem = null;
    try {
      for await (const part of parts(path, body, mine.signal)) {
        answer.add(read(part), (performance.now() - begin) / 1000);
        if (!isQueued) requestAnimationFrame(frame);
        isQueued = true;
      }
    } catch (error) {
      answer.finish = mine.signal.aborted ? "stopped" : "problem";
      if (!mine.signal.aborted) {
        problem = error;
        answer.problem = error instanceof Error ? error.message : String(error);
      }
    }
    draw();
    if (this.running !== mine) return; // another answer has begun
    this.running = null;
    this.mark(false);
    if (problem instanceof ServerError && problem.status === 401) this.app.fail(problem);
    this.app.speak(answer.problem || `The answer is complete: ${answer.text}`);
  }
}
