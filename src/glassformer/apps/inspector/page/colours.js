/**
 * Colour scales: one sequential and one diverging, each for light and dark pages; and how surprising a token is, for its
 * colour.
 *
 * The stops are OKLCH colours (lightness, chroma, hue in degrees). Lightness is monotone along the sequential scale, and
 * on both sides of the centre of the diverging scale (orange = negative, blue = positive). Both remain readable with the
 * common kinds of colour blindness and in grey.
 */

/** @typedef {[red: number, green: number, blue: number]} Rgb */

/** @typedef {[number, number, number]} Triple */

const STOPS = /** @type {Record<string, Triple[]>} */ ({
  "sequential light": [[0.985, 0.004, 250], [0.87, 0.06, 243], [0.66, 0.145, 252], [0.49, 0.17, 260], [0.31, 0.11, 270]],
  "sequential dark": [[0.235, 0.014, 262], [0.36, 0.085, 264], [0.54, 0.14, 258], [0.75, 0.12, 236], [0.96, 0.045, 210]],
  "diverging light": [[0.55, 0.14, 50], [0.78, 0.115, 65], [0.975, 0.003, 250], [0.76, 0.1, 245], [0.49, 0.16, 258]],
  "diverging dark": [[0.83, 0.13, 70], [0.56, 0.12, 55], [0.255, 0.01, 262], [0.55, 0.125, 256], [0.84, 0.09, 230]],
});

/**
 * Convert an OKLCH colour to sRGB (0 to 255).
 * @param {number} lightness
 * @param {number} chroma
 * @param {number} hue
 */
export const oklch = (lightness, chroma, hue) => fromOklab(...toOklab([lightness, chroma, hue]));

/** @param {Triple} oklch @returns {Triple} */
function toOklab([lightness, chroma, hue]) {
  const angle = (hue * Math.PI) / 180;
  return [lightness, chroma * Math.cos(angle), chroma * Math.sin(angle)];
}

/** @param {number} lightness @param {number} a @param {number} b @returns {Rgb} */
function fromOklab(lightness, a, b) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  const [red, green, blue] = linear.map((x) => {
    const inside = Math.min(1, Math.max(0, x));
    return Math.round(255 * (inside <= 0.0031308 ? 12.92 * inside : 1.055 * inside ** (1 / 2.4) - 0.055));
  });
  return /** @type {Rgb} */ ([red, green, blue]);
}

/**
 * Return the colour at t (0 to 1) of a list of stops, interpolated in OKLab.
 * @param {Triple[]} stops
 * @param {number} t
 */
function between(stops, t) {
  const place = Math.min(1, Math.max(0, t)) * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(place));
  const share = place - first;
  const [from = [], to = []] = stops.slice(first, first + 2).map(toOklab);
  return fromOklab(.../** @type {Triple} */ (from.map((x, i) => x * (1 - share) + (to[i] ?? 0) * share)));
}

/** Return the colour of the keys that a mask hides. @param {boolean} dark @returns {Rgb} */
export const maskedColour = (dark) => (dark ? [58, 62, 72] : [223, 225, 229]);

/** @type {Map<string, Rgb[]>} */
const tables = new Map();

/**
 * Return the 256 colours of a scale.
 * @param {"sequential" | "diverging"} scale
 * @param {boolean} dark
 */
export function colourTable(scale, dark) {
  const name = `${scale} ${dark ? "dark" : "light"}`;
  const stops = /** @type {Triple[]} */ (STOPS[name]);
  const table = tables.get(name) ?? Array.from({ length: 256 }, (_, i) => between(stops, i / 255));
  tables.set(name, table);
  return table;
}

/**
 * Return the position (0 to 1) of a value in a range. In a diverging scale, 0 is always at the centre.
 * @param {number} value
 * @param {"sequential" | "diverging"} scale
 * @param {[number, number]} range
 */
export function scalePosition(value, scale, range) {
  const [low, high] = fullRange({ scale, range });
  return Math.min(1, Math.max(0, (value - low) / (high - low || 1)));
}

/** Return a range with 0 at the centre for a diverging scale. @param {{scale: string, range: [number, number]}} look @returns {[number, number]} */
export function fullRange({ scale, range }) {
  const size = Math.max(Math.abs(range[0]), Math.abs(range[1])) || 1;
  return scale === "diverging" ? [-size, size] : range;
}

/**
 * Return the colour of a value.
 * @param {number} value
 * @param {"sequential" | "diverging"} scale
 * @param {[number, number]} range
 * @param {boolean} dark
 */
export function colourOf(value, scale, range, dark) {
  return /** @type {Rgb} */ (colourTable(scale, dark)[Math.round(255 * scalePosition(value, scale, range))]);
}

/**
 * Return the background of a token. Use only the lighter part of the sequential scale (on a dark page, the darker
 * part), so that the text is readable.
 * @param {number} value from 0 to 1
 * @param {boolean} dark
 */
export function tokenColour(value, dark) {
  return colourOf(value * (dark ? 0.42 : 0.46), "sequential", [0, 1], dark);
}

/**
 * Return the colours of the legend of token backgrounds, as CSS.
 * @param {boolean} dark
 */
export function tokenLegend(dark) {
  return Array.from({ length: 5 }, (_, i) => css(tokenColour(i / 4, dark)));
}

/** @param {Rgb} colour @returns {string} */
export function css([red, green, blue]) {
  return `#${[red, green, blue].map((x) => x.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * Return the relative luminance of a colour (WCAG 2, 0 to 1).
 * @param {Rgb} colour
 */
export function luminance(colour) {
  const [red, green, blue] = colour.map((x) => {
    const share = x / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * (red ?? 0) + 0.7152 * (green ?? 0) + 0.0722 * (blue ?? 0);
}

/** Return black or white, whichever has more contrast on a colour. @param {Rgb} colour */
export function inkOn(colour) {
  return luminance(colour) > 0.179 ? "#000000" : "#ffffff";
}

/** Return the style of an element with a colour; null without one. @param {Rgb | null} colour */
export const painted = (colour) => colour && { background: css(colour), color: inkOn(colour) };

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
 */
export function scaleEnds(colour) {
  const ends = /** @type {Record<string, [string, string]>} */ ({
    log_prob: ["log-probability 0", "−8 or less"], rank: ["rank 1", "1000 or more"], entropy: ["entropy 0", "6 nats or more"],
  });
  return ends[colour] ?? null;
}
