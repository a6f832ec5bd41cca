/** Page of `glassformer export --to web`: a network in this file replaces the server. */

import { fromBase64 } from "../page/source.js";
import { start } from "../page/main.js";
import { ComputedSource } from "./computed_source.js";

/** @param {string} id */
const textOf = (id) => /** @type {string} */ (document.getElementById(id)?.textContent);

const source = new ComputedSource(JSON.parse(textOf("web-model")), fromBase64(textOf("weights")));
start(source);
