/** Colours of the current theme, read from the style sheet. */

/** @typedef {{ink: string, faint: string, line: string, paper: string, accent: string, second: string}} Theme */

/** @type {Theme | null} */
let current = null;

/** @returns {Theme} */
export function theme() {
  if (!current) {
    const style = getComputedStyle(document.documentElement);
    const read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    current = {
      ink: read("--ink"), faint: read("--faint"), line: read("--line"), paper: read("--card"), accent: read("--accent"),
      second: read("--second"),
    };
  }
  return current;
}

/** @returns {boolean} */
export function prefersDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/**
 * Use the dark or the light colours.
 * @param {boolean} dark
 */
export function useTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  current = null;
}

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif";
export const MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
