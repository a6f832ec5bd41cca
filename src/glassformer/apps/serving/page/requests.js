/**
 * Requests to the server: answers as JSON, and streams of parts as server-sent events. The pieces of a stream may end
 * anywhere.
 */

import { ServerError } from "../../inspector/page/source.js";

/** Reads pieces of a stream. */
export class EventReader {
  constructor() {
    this.rest = "";
  }

  /**
   * Add a piece; return the data of the events that are complete.
   * @param {string} piece
   * @returns {string[]}
   */
  push(piece) {
    const lines = (this.rest + piece).split("\n\n");
    this.rest = lines.pop() ?? "";
    return lines.map(dataOf).filter((data) => data !== "");
  }
}

/** Return the data of one event; empty for a comment. @param {string} event */
function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}

export const OFFLINE = "The server does not answer. Start it again, then try again.";
const CUT = "The server ended before the answer was complete.";

/** @param {string} path @returns {Promise<any>} */
export async function get(path) {
  return (await answer(path, {})).json();
}

/** @param {string} path @param {unknown} body @returns {Promise<any>} */
export async function post(path, body) {
  const response = await answer(path, posted(body));
  return response.status === 204 ? null : response.json();
}

/**
 * Yield the parts of a stream. Throws a `ServerError` if the server reports one, or ends before the last part.
 * @param {string} path
 * @param {Record<string, unknown>} body
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<any>}
 */
export async function* parts(path, body, signal) {
  const response = await answer(path, posted({ ...body, stream: true }, signal));
  const pieces = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const [reader, decoder] = [new EventReader(), new TextDecoder()];
  for (;;) {
    const { done, value } = await pieces.read().catch((error) => {
      throw signal.aborted ? error : new ServerError(CUT, 0);
    });
    if (done) throw new ServerError(CUT, 0);
    for (const data of reader.push(decoder.decode(value, { stream: true }))) {
      if (data === "[DONE]") return;
      const part = JSON.parse(data);
      if (part.error) throw new ServerError(part.error.message, 500);
      yield part;
    }
  }
}

/** @param {unknown} body @param {AbortSignal} [signal] @returns {RequestInit} */
function posted(body, signal) {
  return { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal: signal ?? null };
}

/** @param {string} path @param {RequestInit} options */
async function answer(path, options) {
  const response = await fetch(path, options).catch((error) => {
    throw options.signal?.aborted ? error : new ServerError(OFFLINE, 0);
  });
  if (response.ok) return response;
  const found = await response.json().catch(() => null);
  throw new ServerError(found?.error?.message ?? `The server answers with status ${response.status}.`, response.status);
}
