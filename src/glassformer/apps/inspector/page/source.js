/**
 * Data of the page from the server, and the numbers in its compressed bytes. A page in a file computes them instead
 * (`network/computed_source.js`).
 */

/**
 * Decompress zlib data.
 * @param {Uint8Array<ArrayBuffer> | ArrayBuffer} bytes
 */
export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/**
 * Return the numbers of a shape such as "2,4,16,16".
 * @param {string} text
 */
export function parseShape(text) {
  const shape = text.split(",").map((part) => Number(part.trim()));
  if (!shape.length || shape.some((n) => !Number.isInteger(n) || n < 0)) throw new Error(`not a shape: ${text}`);
  return shape;
}

/**
 * Return the bytes of a base64 text.
 * @param {string} text
 */
export function fromBase64(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < characters.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

/**
 * Return little-endian float32 numbers.
 * @param {ArrayBuffer} buffer
 */
export function floats(buffer) {
  return new Float32Array(buffer, 0, buffer.byteLength >> 2); // all browsers run on little-endian machines
}

/**
 * Return `length` little-endian uint16 numbers from number `start` on, divided by 65535.
 * @param {ArrayBuffer} buffer
 * @param {number} start
 * @param {number} length
 */
export function weights16(buffer, start, length) {
  return new Float32Array(new Uint16Array(buffer, 2 * start, length)).map((x) => x / 65535);
}

export const OFFLINE = "The server does not answer. Start it again; this page continues by itself.";

/** An answer of the server with a status of 400 or more. */
export class ServerError extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * Return a path with the given values as its query. Undefined values are left out.
 * @param {string} path
 * @param {Record<string, string | number | undefined>} query
 */
export function withQuery(path, query) {
  const parts = Object.entries(query).filter(([, value]) => value !== undefined);
  return parts.length ? `${path}?${parts.map(([key, x]) => `${key}=${encodeURIComponent(String(x))}`).join("&")}` : path;
}

/**
 * Throw an error if an answer names another run than its path, or another model than its request.
 * @param {string} path
 * @param {string | undefined} model
 * @param {{model?: string | null, run?: string | null}} names
 */
export function requireSame(path, model, names) {
  const run = /^\/api\/run\/([^/]+)\//.exec(path)?.[1];
  if ((run === undefined || run === names.run) && (model === undefined || model === names.model)) return;
  throw new ServerError("The server answered for another model or run: reload the page.", 0);
}

/** @param {number} ms */
export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** @typedef {{shape: number[], buffer: ArrayBuffer}} Bytes */

/** Access to the routes below /api/. */
export class Source {
  constructor() {
    /** Called with true when the server stops answering, and with false when it answers again. */
    this.onoffline = (/** @type {boolean} */ _isOffline) => {};
    /** @type {Promise<void> | null} */
    this.waiting = null;
  }

  /** True if the source computes gradients. */
  get hasGradients() {
    return true;
  }

  /** Return true if a route can be used. @param {string} _route */
  answers(_route) {
    return true;
  }

  /**
   * @param {string} path
   * @param {string} [model] that the answer must name
   * @returns {Promise<any>}
   */
  async get(path, model) {
    const answer = await (await this.#request(path, {})).json();
    requireSame(path, model, answer);
    return answer;
  }

  /**
   * Send a body; the answer must name its `model`.
   * @param {string} path
   * @param {{model?: string, [name: string]: unknown}} body
   * @returns {Promise<any>}
   */
  async post(path, body) {
    const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    const answer = await (await this.#request(path, options)).json();
    requireSame(path, body.model, answer);
    return answer;
  }

  /**
   * @param {string} path
   * @param {string} model that the answer must name
   */
  async bytes(path, model) {
    const response = await this.#request(path, {});
    const [named, run] = ["x-model", "x-run"].map((name) => decodeURIComponent(response.headers.get(name) ?? ""));
    requireSame(path, model, { model: named ?? "", run: run ?? "" });
    const buffer = await inflate(await response.arrayBuffer());
    return { shape: parseShape(response.headers.get("x-shape") ?? String(buffer.byteLength)), buffer };
  }

  /**
   * Request a path; while the server does not answer, wait and try again.
   * @param {string} path
   * @param {RequestInit} options
   */
  async #request(path, options) {
    for (;;) {
      let response;
      try {
        response = await fetch(path.replace(/^\//, ""), options);
      } catch {
        await this.#recovered();
        continue;
      }
      if (response.ok) return response;
      const problem = await response.json().catch(() => null);
      throw new ServerError(problem?.error ?? `The server answers with status ${response.status}.`, response.status);
    }
  }

  /** Wait until the server answers; all requests share one wait. */
  #recovered() {
    this.waiting ??= this.#poll().finally(() => { this.waiting = null; });
    return this.waiting;
  }

  async #poll() {
    this.onoffline(true);
    do await pause(1500);
    while (!(await fetch("api/health").catch(() => null))?.ok);
    this.onoffline(false);
  }
}
