/** Decompress the bytes that the server sends, and read numbers from them. */

/**
 * Decompress zlib data.
 * @param {Uint8Array<ArrayBuffer> | ArrayBuffer} bytes
 * @returns {Promise<ArrayBuffer>}
 */
export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/**
 * Return the numbers of a shape such as "2,4,16,16".
 * @param {string} text
 * @returns {number[]}
 */
export function parseShape(text) {
  const shape = text.split(",").map((part) => Number(part.trim()));
  if (!shape.length || shape.some((n) => !Number.isInteger(n) || n < 0)) throw new Error(`not a shape: ${text}`);
  return shape;
}

/**
 * Return the bytes of a base64 text.
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer>}
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
 * @returns {Float32Array}
 */
export function floats(buffer) {
  const view = new DataView(buffer);
  const values = new Float32Array(buffer.byteLength >> 2);
  for (let i = 0; i < values.length; i++) values[i] = view.getFloat32(4 * i, true);
  return values;
}

/**
 * Return `length` little-endian uint16 numbers from number `start` on, divided by 65535.
 * @param {ArrayBuffer} buffer
 * @param {number} start
 * @param {number} length
 * @returns {Float32Array}
 */
export function weights16(buffer, start, length) {
  const view = new DataView(buffer);
  const values = new Float32Array(length);
  for (let i = 0; i < length; i++) values[i] = view.getUint16(2 * (start + i), true) / 65535;
  return values;
}
