/**
 * The weights of a network, by name, from a safetensors file in base64.
 *
 * A file is eight bytes with the length of the header, the header (JSON: name → dtype, shape, begin and end of its bytes),
 * and the bytes of all tensors. The dtypes are F32, BF16, and I8 with a tensor NAME.scales, one scale for each row.
 *
 * @import { Tensor } from "./tensors.js"
 */

/** @typedef {{dtype: string, shape: number[], data_offsets: [number, number]}} Entry */

/**
 * Widen bfloat16 numbers: they are the upper half of a float32.
 * @param {Uint16Array} halves
 */
function fromBfloat16(halves) {
  return new Float32Array(new Uint32Array(halves).map((half) => half << 16).buffer);
}

/**
 * Widen int8 numbers: w = s · q, with one scale s for each row.
 * @param {Int8Array} integers
 * @param {Float32Array} scales
 */
function fromInt8(integers, scales) {
  const width = integers.length / scales.length;
  const numbers = new Float32Array(integers.length);
  for (let i = 0; i < numbers.length; i++) numbers[i] = integers[i] * scales[Math.floor(i / width)];
  return numbers;
}

/**
 * Read a safetensors file, and widen its tensors once to float32.
 * @param {Uint8Array<ArrayBuffer>} bytes
 */
export function readTensors(bytes) {
  const nHeader = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + nHeader)));
  delete header.__metadata__;
  /** @type {Map<string, Tensor>} */
  const tensors = new Map();
  /** @param {string} name @returns {Float32Array} */
  const numbers = (name) => {
    const { dtype, data_offsets: [begin, end] } = /** @type {Entry} */ (header[name]);
    const buffer = bytes.slice(8 + nHeader + begin, 8 + nHeader + end).buffer;
    if (dtype === "F32") return new Float32Array(buffer);
    return dtype === "BF16" ? fromBfloat16(new Uint16Array(buffer)) : fromInt8(new Int8Array(buffer), numbers(`${name}.scales`));
  };
  for (const name of Object.keys(header)) if (!name.endsWith(".scales")) tensors.set(name, { shape: header[name].shape, data: numbers(name) });
  return tensors;
}

/** Weights by name. A tied weight has several names. */
export class Weights {
  /** @param {Map<string, Tensor>} tensors @param {Record<string, string>} tied names of tied weights: other name → stored name */
  constructor(tensors, tied) {
    this.tensors = tensors;
    this.tied = tied;
  }

  /** Return the tensor of a name; null without one. @param {string} name @returns {Tensor | null} */
  find(name) {
    return this.tensors.get(this.tied[name] ?? name) ?? null;
  }

  /** @param {string} name @returns {Tensor} */
  get(name) {
    const tensor = this.find(name);
    if (!tensor) throw new Error(`the file has no weight ${name}`);
    return tensor;
  }

  /** Return the weight and the bias of a linear layer. @param {string} path @returns {[Tensor, Tensor | null]} */
  linear(path) {
    return [this.get(`${path}.weight`), this.find(`${path}.bias`)];
  }

  /** @param {string} path */
  hasLinear(path) {
    return this.find(`${path}.weight`) !== null;
  }
}
