/** Choices that the browser keeps for the next visit. */

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
