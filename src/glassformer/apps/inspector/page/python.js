/**
 * Python code that computes the numbers of a panel.
 *
 * @import { State } from "./types.js"
 */

import { partsOff } from "../panels/ablation.js";
import { logitQuery } from "../panels/attribution.js";
import { chosenKind } from "./app.js";
import { mainTokens, messagesOf, selectedPosition } from "./state.js";

/** Return a text as a literal of Python, which reads JSON's escapes. @param {unknown} value */
const literal = (value) => JSON.stringify(value);

/** Return the program for the open panel. @param {State} state with a model and a run @param {string} panel @returns {string} */
export function pythonOf(state, panel) {
  const lines = PROGRAMS[panel]?.(state, given(state)) ?? [];
  const imports = ["import glassformer", ...lines.filter((line) => line.startsWith("from "))];
  const { folder = "", step = null, checkpoints = [] } = state.model ?? {};
  const place = literal(folder || "runs/NAME") + (step !== null && checkpoints.includes(step) ? `, step=${step}` : "");
  return [...imports, "", `model = glassformer.load(${place})`, ...lines.filter((line) => !line.startsWith("from "))].join("\n");
}

/** Return the arguments of the input: a text, a source and its target, or ids. @param {State} state */
function given(state) {
  const { run, ran } = state;
  if (!run) return "";
  if (run.source.length && run.target.length) {
    const [source, target] = ran ? [literal(ran.source), ran.target && literal(ran.target)] : [ids(run.source), ids(run.target)];
    return `source=${source}${target ? `, target=${target}` : ""}`;
  }
  return ran?.text && !ran.ids && !ran.messages ? literal(ran.text) : ids(mainTokens(state));
}

/** @param {{id: number}[]} tokens */
const ids = (tokens) => literal(tokens.map(({ id }) => id)).replaceAll(",", ", ");

/** Return settings that are given, such as `, top_k=5`. @param {Record<string, string | number>} settings */
const named = (settings) => Object.entries(settings).map(([key, value]) => `, ${key}=${literal(value)}`).join("");

/** Return the arguments for a logit: token, against and position. @param {State} state */
const ofLogit = (state) => named(Object.fromEntries(["token", "against", "position"].flatMap((key) => {
  const value = logitQuery(state)[/** @type {"token" | "against" | "position"} */ (key)];
  return value === undefined ? [] : [[key, value]];
})));

/** Lines of a program by panel; those that begin with `from` are imports. @type {Record<string, (state: State, given: string) => string[]>} */
const PROGRAMS = {
  flow: (_, input) => ["from glassformer.inspection.capture import FLOW", `trace = model.trace(${input}, names=FLOW)`, "print(trace)"],
  attention: (state, input) => {
    const isOpen = state.layer >= 0 && state.head >= 0;
    if (!isOpen && state.model?.kind !== "recurrent") return ["from glassformer.inspection.head_scores import network_scores, random_scores, ranked_heads",
      `trace = model.trace(${input}, names=["logits"])`, "# By pattern: each head with its score on the input and on repeated random tokens", "print(ranked_heads(network_scores(model.network, trace.inputs), random_scores(model)))"];
    return ["from glassformer.inspection.attention_maps import attention_layers", `weights = model.attention(${input})`, `print(attention_layers(weights, ${literal(chosenKind(state))})${isOpen ? `[${state.layer}][0, ${state.head}]` : ""})`];
  },
  alignment: (state, input) => {
    const where = named({ ...(state.align_layer < 0 ? {} : { layer: state.align_layer }), ...(state.align_head < 0 ? {} : { head: state.align_head }) });
    return ["from glassformer.inspection.attention_maps import alignment", `weights = model.attention(${input})`, `print(alignment(weights${where}))`];
  },
  lens: ({ norm }, input) => [`print(model.logit_lens(${input}${norm ? "" : ", norm=False"}))`],
  attribution: (state, input) => {
    return [`print(model.logit_attribution(${input}${ofLogit(state)}))`];
  },
  inputs: (state, input) => ["from glassformer.inspection import input_effects", `trace = model.trace(${input}, names=["logits"])`, `print(input_effects(model, trace${ofLogit(state)}))`],
  ablation: (state, input) => {
    const { off, mean } = state;
    if (!off) {
      const isNext = state.measure === "next" && ["decoder", "encoder-decoder"].includes(state.model?.kind ?? "");
      const isLogit = state.measure === "logit";
      const [at, means] = [selectedPosition(state), mean ? ", means=trace.tensors" : ""];
      const labels = [`logits = trace["logits"][0]`, "labels = logits.argmax(-1).new_full((len(logits),), -100)", `labels[${at}] = logits[${at}].argmax()`, `measure = Measure("loss", labels.to(trace.inputs["token_ids"].device))`];
      return [`from glassformer.inspection.ablation import ${mean ? "MEANS, " : ""}effects`, `from glassformer.inspection.measures import ${isNext ? "Measure" : isLogit ? "logit_measure" : "measure_of"}`,
        `trace = model.trace(${input}${mean ? ', names=[*MEANS, "logits"]' : ""})`, ...(isNext ? labels : [isLogit ? `measure = logit_measure(model, trace.inputs${ofLogit(state)})` : "measure = measure_of(model, trace.inputs)"]), `print(effects(model.network, trace.inputs, measure${means}).changes)`];
    }
    const parts = literal(partsOff(off).split(",").filter(Boolean)).replaceAll(",", ", ");
    if (!mean) return [`with model.ablate(${parts}):`, `    print(model.trace(${input})["logits"])`];
    return ["from glassformer.inspection.ablation import ablate", `trace = model.trace(${input})`, `with ablate(model, ${parts}, trace):`, `    print(model.trace(${input})["logits"])`];
  },
  patch: ({ model, clean, corrupted, answer, wrong, prefix: target, stack }) => {
    const isPair = model?.kind === "encoder-decoder";
    const more = named({ ...(answer ? { answer } : {}), ...(wrong ? { wrong } : {}), ...(isPair && target ? { target } : {}) });
    const where = isPair ? `, ${literal(stack === "decoder" ? "decoder" : "encoder")}` : "";
    return ["from glassformer.inspection.patching import patch_heads, patch_residual, patching_of",
      `pair = patching_of(model, ${literal(clean)}, ${literal(corrupted)}${more})`, `print(patch_residual(model.network, pair${where}).shares)`, `print(patch_heads(model.network, pair${where}).shares)`];
  },
  steps: (state, input) => {
    const { temperature, top_k, top_p } = state;
    const rules = named({ temperature, ...(top_k ? { top_k } : {}), ...(top_p < 1 ? { top_p } : {}) });
    if (state.model?.verb === "fill") return [`print(model.fill(${literal(state.ran?.source)}))`];
    if (state.run?.source.length) return [`print(model.translate(${literal(state.ran?.source)}))`];
    const messages = messagesOf(state.ran?.messages ?? "");
    if (messages) return [`print(model.chat(${literal(messages.map(({ role, content }) => ({ role, content })))}${rules}))`];
    return [`print(model.generate(${input}, max_new_tokens=20${rules}))`];
  },
  beam: (state) => ["from glassformer.inspection.beam_tree import beam_tree",
    `tree = beam_tree(model, ${literal(state.ran?.source ?? "")}${named({ ...(state.beam ? { beam: state.beam } : {}), ...(state.penalty < 0 ? {} : { length_penalty: state.penalty }) })})`,
    "print([model.tokenizer.decode(found.text_ids) for _, found in tree.results])"],
};

/** Return true if a panel has a program for what it shows. @param {State} state @param {string} panel */
export function hasPython(state, panel) {
  const isOfText = panel === "beam" || panel === "steps"; // these do not read ids
  if (isOfText && (!state.ran || state.ran.ids)) return false;
  return panel in PROGRAMS && (panel !== "patch" || Boolean(state.clean && state.corrupted));
}
