/** Colours of the current theme, read from the style sheet; and choices that the browser keeps for the next visit. */

import { button } from "./dom.js";

/**
 * Return a kept choice; null without one.
 * @param {string} name
 * @returns {string | null}
 */
export function stored(name) {
  try {
    return localStorage.getItem(`glassformer-${name}`);
  } catch {
    return null;
  }
}

/**
 * Keep a choice. Without storage, the choice is lost when the page is closed.
 * @param {string} name
 * @param {string} value
 */
export function keep(name, value) {
  try {
    localStorage.setItem(`glassformer-${name}`, value);
  } catch {
    // the browser blocks storage
  }
}

/** Read the colours of the style sheet. */
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return { ink: read("--ink"), faint: read("--faint"), line: read("--line"), paper: read("--card"), accent: read("--accent"), second: read("--second") };
}

/** @type {ReturnType<typeof readTheme> | null} */
let current = null;

export const theme = () => (current ??= readTheme());

/** Return true if the user has chosen the dark colours, or else if the system prefers them. @returns {boolean} */
export function storedDark() {
  const choice = stored("theme");
  return choice === null ? matchMedia("(prefers-color-scheme: dark)").matches : choice === "dark";
}

/**
 * Use the dark or the light colours.
 * @param {boolean} dark
 */
export function useTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  current = null;
}

/**
 * Create the button that switches between the dark and the light colours. The browser keeps the choice.
 * @param {boolean} dark
 * @param {(dark: boolean) => void} onchange
 */
export function themeButton(dark, onchange) {
  const other = dark ? "light" : "dark";
  return button(other, () => {
    keep("theme", other);
    useTheme(!dark);
    onchange(!dark);
  }, { class: "quiet", title: "Switch between light and dark" });
}

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif";
export const MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
