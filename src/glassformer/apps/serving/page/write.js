/**
 * Let a model write an answer, part by part.
 *
 * @import { Answer, Part } from "./answer.js"
 */

import { parts, post } from "./requests.js";

/**
 * Send a request whose answer is a stream, and add the parts to an answer until it is complete, stopped or has failed.
 * Return the problem, if there is one.
 * @param {Answer} answer
 * @param {{path: string, body: Record<string, unknown>, read: (part: any) => Part, signal: AbortSignal, onchange: () => void}} request
 */
export async function write(answer, { path, body, read, signal, onchange }) {
  const begin = performance.now();
  answer.limit = typeof body.max_tokens === "number" ? body.max_tokens : null;
  try {
    for await (const part of parts(path, body, signal)) {
      answer.add(read(part), (performance.now() - begin) / 1000);
      onchange();
    }
    return null;
  } catch (error) {
    answer.finish = signal.aborted ? "stopped" : "problem";
    if (signal.aborted) return null;
    answer.problem = error instanceof Error ? error.message : String(error);
    return error;
  }
}

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
