/**
 * Shared by the views of the page: the model, the settings, and the messages to the user.
 *
 * @import { Settings } from "./settings.js"
 * @import { Details } from "./details.js"
 *
 * @typedef {{
 *   id: string, abilities: string[], max_len: number, learned: string, n_parameters: number,
 *   defaults: Record<string, number>, special_tokens: string[],
 * }} Model
 *
 * @typedef {{
 *   model: Model, settings: Settings, details: Details, dark: boolean, say: (text: string) => void,
 *   speak: (text: string) => void, fail: (error: unknown) => void,
 * }} App
 * `say` shows a message, `speak` sends a message to screen readers only, and `fail` shows an error.
 *
 * @typedef {{element: HTMLElement, draw: () => void}} View
 * `draw` draws the view again after a change of the model, the settings or the colours.
 */
export {};
