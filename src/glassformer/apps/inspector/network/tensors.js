/**
 * Tensors, and the operations that several layers share.
 *
 * A network reads one text at a time, so its tensors have no batch axis. Letters: T queries, S keys, H heads, G key-value
 * heads, K and W widths per head, D width of the model, V vocabulary.
 *
 * @typedef {{shape: number[], data: Float32Array}} Tensor
 * @typedef {((name: string, x: Tensor) => void) | null} Tap
 * A tap receives named tensors, with the names and shapes of `inspection/capture.py`: it adds a batch axis of size 1.
 */

/** Return a tensor of zeros. @param {...number} shape @returns {Tensor} */
export function zeros(...shape) {
  return { shape, data: new Float32Array(shape.reduce((product, n) => product * n, 1)) };
}

/** Return the size of the last axis. @param {Tensor} x */
export function widthOf(x) {
  return x.shape[x.shape.length - 1];
}

/** Return the number of rows: the product of all axes but the last. @param {Tensor} x */
export function rowsOf(x) {
  return x.data.length / widthOf(x);
}

/** Return the tap of a part. @param {Tap} tap @param {string} name @returns {Tap} */
export function scoped(tap, name) {
  return tap && ((inner, x) => tap(`${name}.${inner}`, x));
}

/** Pass a tensor to a tap, and return it. @param {Tap} tap @param {string} name @param {Tensor} x */
export function tapped(tap, name, x) {
  tap?.(name, { shape: [1, ...x.shape], data: x.data });
  return x;
}

/**
 * Return Σₖ a[i + k] · b[j + k] over n terms, in four partial sums, which a processor computes at the same time.
 * @param {Float32Array} a
 * @param {number} i
 * @param {Float32Array} b
 * @param {number} j
 * @param {number} n
 */
export function dot(a, i, b, j, n) {
  let [first, second, third, fourth, k] = [0, 0, 0, 0, 0];
  for (; k + 3 < n; k += 4) {
    first += a[i + k] * b[j + k];
    second += a[i + k + 1] * b[j + k + 1];
    third += a[i + k + 2] * b[j + k + 2];
    fourth += a[i + k + 3] * b[j + k + 3];
  }
  for (; k < n; k++) first += a[i + k] * b[j + k];
  return first + second + third + fourth;
}

/**
 * Compute y = x Wᵀ + b: (…, in), (out, in), (out,) → (…, out).
 * @param {Tensor} x
 * @param {Tensor} weight
 * @param {Tensor | null} [bias]
 * @returns {Tensor}
 */
export function linear(x, weight, bias = null) {
  const [nOut, width] = weight.shape;
  const y = zeros(...x.shape.slice(0, -1), nOut);
  for (let row = 0; row < rowsOf(x); row++) {
    for (let out = 0; out < nOut; out++) {
      const sum = dot(x.data, row * width, weight.data, out * width, width);
      y.data[row * nOut + out] = bias === null ? sum : sum + bias.data[out];
    }
  }
  return y;
}

/** Return rows of a table or a matrix: ids (T,) → (T, D). @param {Tensor} table @param {number[]} ids @returns {Tensor} */
export function rowsAt(table, ids) {
  const width = widthOf(table);
  const x = zeros(ids.length, width);
  ids.forEach((id, t) => x.data.set(table.data.subarray(id * width, (id + 1) * width), t * width));
  return x;
}

/** Apply a function to each number. @param {Tensor} x @param {(value: number) => number} f @returns {Tensor} */
export function map({ shape, data }, f) {
  return { shape, data: data.map(f) };
}

/**
 * Combine the numbers of two tensors of one size.
 * @param {Tensor} a
 * @param {Tensor} b
 * @param {(a: number, b: number) => number} f
 * @returns {Tensor}
 */
export function zip({ shape, data }, b, f) {
  return { shape, data: data.map((x, i) => f(x, b.data[i])) };
}

/** Return a + b. @param {Tensor} a @param {Tensor} b */
export function add(a, b) {
  return zip(a, b, (x, y) => x + y);
}

/** Return a · b, number by number. @param {Tensor} a @param {Tensor} b */
export function multiply(a, b) {
  return zip(a, b, (x, y) => x * y);
}

/** Return the columns from `begin` to before `end`: (…, D) → (…, end - begin). @param {Tensor} x @param {number} begin @param {number} end */
export function columns(x, begin, end) {
  const [width, n] = [widthOf(x), end - begin];
  const y = zeros(...x.shape.slice(0, -1), n);
  for (let row = 0; row < rowsOf(x); row++) y.data.set(x.data.subarray(row * width + begin, row * width + end), row * n);
  return y;
}

/** Return tensors side by side: (T, A), (T, B) → (T, A + B). @param {...Tensor} parts @returns {Tensor} */
export function beside(...parts) {
  const widths = parts.map(widthOf);
  const y = zeros(parts[0].shape[0], widths.reduce((sum, n) => sum + n, 0));
  for (let row = 0; row < y.shape[0]; row++) {
    let at = row * widthOf(y);
    parts.forEach((part, i) => {
      y.data.set(part.data.subarray(row * widths[i], (row + 1) * widths[i]), at);
      at += widths[i];
    });
  }
  return y;
}

/**
 * Return rows one after the other, in each head: (…, S, K) and (…, T, K) → (…, S + T, K).
 * @param {Tensor} first
 * @param {Tensor} second
 * @returns {Tensor}
 */
export function after(first, second) {
  const [heads, width] = [first.shape.slice(0, -2), widthOf(first)];
  const nHeads = heads.reduce((product, n) => product * n, 1);
  const joined = beside(...[first, second].map((x) => reshaped(x, nHeads, x.data.length / nHeads)));
  return reshaped(joined, ...heads, widthOf(joined) / width, width);
}

/** Return the same numbers with another shape. @param {Tensor} x @param {...number} shape @returns {Tensor} */
export function reshaped(x, ...shape) {
  return { shape, data: x.data };
}

/** Return the integers from `begin` to before `end`. @param {number} begin @param {number} end */
export function range(begin, end) {
  return Array.from({ length: end - begin }, (_, i) => begin + i);
}
