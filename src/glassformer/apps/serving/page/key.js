/** The form that asks for the key of the server. */

import { h } from "../../inspector/page/dom.js";
import { Problem, post } from "./requests.js";

/**
 * Return the form; `done` is called when the server has accepted the key.
 * @param {() => void} done
 */
export function keyForm(done) {
  const input = h("input", { type: "password", autocomplete: "current-password", required: true });
  const note = h("p", { class: "problem", role: "alert" });
  const submit = h("button", { type: "submit", class: "primary" }, "Open");
  const form = h("form", { class: "card key", onsubmit: async (/** @type {Event} */ event) => {
    event.preventDefault();
    submit.disabled = true;
    note.textContent = "";
    try {
      await post("session", { key: input.value.trim() });
      done();
    } catch (error) {
      note.textContent = error instanceof Problem && error.status === 401 ? "The key is wrong." : String(error instanceof Error ? error.message : error);
      input.select();
    } finally {
      submit.disabled = false;
    }
  } },
  h("h2", {}, "This server needs a key"),
  h("p", { class: "about" }, "The browser keeps a cookie in place of the key, and no other site can use it."),
  h("label", { class: "field wide" }, h("span", {}, "key"), input), note, submit);
  requestAnimationFrame(() => input.focus());
  return form;
}
