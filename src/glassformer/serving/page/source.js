/**
 * Data of the page: from the server, or from the data embedded in a single file.
 *
 * Embedded data is a JSON object in `<script type="application/json" id="embedded">`. Its keys are "GET /api/…" and
 * "POST /api/… BODY", where BODY is JSON with sorted keys. Bytes are {"shape": "1,2", "zlib": "base64"}.
 */

import { fromBase64, inflate, parseShape } from "./decode.js";

export const OFFLINE = "The server does not answer. Start it again; this page continues by itself.";
export const NOT_EMBEDDED = 'Start "glassformer inspect DIR" to compute this.';

/** An answer of the server with a status of 400 or more. */
export class ServerError extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * Return JSON with sorted keys, without undefined values.
 * @param {unknown} value
 * @returns {string}
 */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value && typeof value === "object") {
    const entries = Object.entries(value).filter(([, x]) => x !== undefined).sort(([a], [b]) => (a < b ? -1 : 1));
    return `{${entries.map(([key, x]) => `${JSON.stringify(key)}:${canonical(x)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

/**
 * Return a path with the query of the given values; undefined ones are left out.
 * @param {string} path
 * @param {Record<string, string | number | undefined>} query
 */
export function withQuery(path, query) {
  const parts = Object.entries(query).filter(([, value]) => value !== undefined);
  return parts.length ? `${path}?${parts.map(([key, x]) => `${key}=${encodeURIComponent(String(x))}`).join("&")}` : path;
}

/** @param {number} ms */
export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** @typedef {{shape: number[], buffer: ArrayBuffer}} Bytes */

/** Access to the routes below /api/. */
export class Source {
  /** @param {Record<string, any> | null} embedded */
  constructor(embedded) {
    this.embedded = embedded;
    /** Called with true when the server stops answering, and with false when it answers again. */
    this.onoffline = (/** @type {boolean} */ _isOffline) => {};
    /** @type {Promise<void> | null} */
    this.waiting = null;
  }

  /** True if the page cannot compute anything new. */
  get isEmbedded() {
    return this.embedded !== null;
  }

  /**
   * Return the bodies of the embedded answers to a POST route.
   * @param {string} path
   * @returns {any[]}
   */
  embeddedBodies(path) {
    const start = `POST ${path} `;
    return Object.keys(this.embedded ?? {}).filter((key) => key.startsWith(start)).map((key) => JSON.parse(key.slice(start.length)));
  }

  /** Return true if the route can be used: always with a server, otherwise if its data is embedded. @param {string} key */
  has(key) {
    return !this.embedded || Object.hasOwn(this.embedded, key);
  }

  /**
   * @param {string} path
   * @returns {Promise<any>}
   */
  async get(path) {
    if (this.embedded) return this.#found(`GET ${path}`);
    return (await this.#request(path, {})).json();
  }

  /**
   * @param {string} path
   * @param {unknown} body
   * @returns {Promise<any>}
   */
  async post(path, body) {
    if (this.embedded) return this.#found(`POST ${path} ${canonical(body)}`);
    const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    return (await this.#request(path, options)).json();
  }

  /**
   * @param {string} path
   * @returns {Promise<Bytes>}
   */
  async bytes(path) {
    if (this.embedded) {
      const { shape, zlib } = this.#found(`GET ${path}`);
      return { shape: parseShape(shape), buffer: await inflate(fromBase64(zlib)) };
    }
    const response = await this.#request(path, {});
    const buffer = await inflate(await response.arrayBuffer());
    return { shape: parseShape(response.headers.get("x-shape") ?? String(buffer.byteLength)), buffer };
  }

  /** @param {string} key */
  #found(key) {
    if (this.embedded && Object.hasOwn(this.embedded, key)) return this.embedded[key];
    throw new ServerError(NOT_EMBEDDED, 0);
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
    for (;;) {
      await pause(1500);
      const answer = await fetch("api/health").catch(() => null);
      if (answer?.ok) break;
    }
    this.onoffline(false);
  }
}

/**
 * Return the source of this page.
 * @returns {Source}
 */
export function openSource() {
  const element = document.getElementById("embedded");
  return new Source(element?.textContent ? JSON.parse(element.textContent) : null);
}
