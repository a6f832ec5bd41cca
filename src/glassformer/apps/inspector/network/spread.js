/**
 * Statistics over a set of texts: mean, standard deviation and quartiles, and a baseline on the same texts. Same rules
 * as `inspection/measures.py`.
 *
 * @import { Beside } from "../panels/texts.js"
 */

/** A number is beyond its baseline if the mean difference is larger than this many standard errors. */
const N_ERRORS = 3;
/** With fewer texts, nothing is beyond a baseline. */
const MIN_TEXTS = 5;

/** @param {number[] | Float32Array} values */
export function meanOf(values) {
  return Array.from(values).reduce((sum, x) => sum + x, 0) / values.length;
}

/** Return the standard deviation of a sample; NaN for one number. @param {number[]} values */
function deviationOf(values) {
  const mean = meanOf(values);
  return Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (values.length - 1));
}

/** Return the quantile at `share`, with linear interpolation. @param {number[]} values @param {number} share */
export function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = share * (sorted.length - 1);
  const [low, high] = [sorted[Math.floor(at)], sorted[Math.ceil(at)]];
  return low + (high - low) * (at - Math.floor(at));
}

/**
 * Compare each part with the mean of the other parts. `values` has one number per text for each part.
 * @param {Record<string, number[]>} values
 * @returns {Record<string, Beside>}
 */
export function besideOthers(values) {
  const all = Object.values(values);
  const sums = (all[0] ?? []).map((_, text) => all.reduce((sum, one) => sum + one[text], 0));
  return Object.fromEntries(Object.entries(values).map(([name, own]) => {
    const others = own.map((x, text) => (sums[text] - x) / (all.length - 1)); // NaN for a single part
    const differences = own.map((x, text) => x - others[text]);
    const error = own.length >= MIN_TEXTS ? deviationOf(differences) / Math.sqrt(own.length) : Infinity;
    return [name, {
      mean: meanOf(own), deviation: orNull(deviationOf(own)), quartiles: [quantile(own, 0.25), quantile(own, 0.5), quantile(own, 0.75)],
      baseline: orNull(meanOf(others)), is_beyond: meanOf(differences) > N_ERRORS * error,
    }];
  }));
}

/** @param {number} x */
export const orNull = (x) => (Number.isNaN(x) ? null : x);
