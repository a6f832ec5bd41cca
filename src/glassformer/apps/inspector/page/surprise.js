/** How surprising a token is, for its colour. */

/**
 * Return a number from 0 (expected) to 1 (surprising) of a token, or null.
 * @param {{log_prob: number | null, rank: number | null, entropy: number | null}} token
 * @param {string} colour
 */
export function surprise(token, colour) {
  if (colour === "log_prob" && token.log_prob !== null) return Math.min(1, -token.log_prob / 8);
  if (colour === "rank" && token.rank !== null) return Math.min(1, Math.log10(Math.max(1, token.rank)) / 3);
  if (colour === "entropy" && token.entropy !== null) return Math.min(1, token.entropy / 6);
  return null;
}

/**
 * Return the texts at both ends of the colour scale of `surprise`; null without colours.
 * @param {string} colour
 * @returns {[string, string] | null}
 */
export function scaleEnds(colour) {
  const ends = /** @type {Record<string, [string, string]>} */ ({
    log_prob: ["log-probability 0", "−8 or less"], rank: ["rank 1", "1000 or more"], entropy: ["entropy 0", "6 nats or more"],
  });
  return ends[colour] ?? null;
}
