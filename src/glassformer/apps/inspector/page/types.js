/**
 * Types that several panels share: the model, the run, and the state of the page. The types of the answers of one panel
 * are in its module. This module contains no code.
 *
 * @import { Ablation } from "../panels/ablation.js"
 *
 * @typedef {"decoder" | "encoder" | "encoder-decoder" | "recurrent"} ModelKind
 * @typedef {"source" | "target" | "written"} Side
 * @typedef {[id: number, text: string, probability: number]} Candidate
 *
 * @typedef {{
 *   id: string, name: string, folder: string, kind: ModelKind, verb: string, learned: string, is_causal: boolean,
 *   has_head_over_tokens: boolean, is_additive: boolean, experts: number, parameters: number, vocab_size: number, max_len: number, step: number | null,
 *   mask: string | null, pooling: "first" | "last" | "mean" | "max" | null, has_template: boolean, labels: string[], is_multi_label: boolean, attention: Record<string, {layers: number, heads: number}>, formulas: Record<string, string>,
 *   parts: {name: string, parameters: number}[],
 *   architecture: {title: string, rows: [string, string][]}[],
 *   curves: Record<string, [number, number][]> | null, checkpoints: number[],
 *   examples: Example[], generation: Record<string, number | string>, end_ids: number[],
 * }} Model
 *
 * @typedef {{role: string, content: string}} Message
 * @typedef {{text?: string, ids?: number[], source?: string, target?: string | null, messages?: Message[]}} Example
 *
 * @typedef {{
 *   id: number, text: string, bytes: number[], log_prob: number | null, rank: number | null, entropy: number | null,
 *   top: Candidate[], is_special: boolean,
 * }} Token
 *
 * @typedef {{layers: number, heads: number, rows: Side, columns: Side, first_row?: number}} AttentionPlace
 *
 * @typedef {{
 *   model: string, run: string, kind: ModelKind, source: Token[], target: Token[], written: Token[], loss: number | null,
 *   n_scored: number, attention: Record<string, AttentionPlace>,
 *   labels: {name: string, probability: number}[] | null, number: number | null, unknown: string, cut: string,
 *   seconds: number,
 * }} Run
 *
 * @typedef {{side: Side, index: number}} Place
 * @typedef {{hover: Place, across: Place | null} | null} Lit
 *
 * @typedef {typeof import("./state.js").DEFAULTS} View
 * `unit` is a head or a neuron of the panel "Texts", such as `decoder.0.neuron.17`.
 * `flow` is the place in the flow, such as `decoder.0.2.ff`: stack, block, head and stage.
 * `ids` are the ids of `text`, separated by commas, if the text has other tokens than usual; otherwise empty.
 *
 * @typedef {{text: string, ids: string, source: string, target: string, messages: string}} Texts
 * `messages` is a conversation as JSON, which replaces the text; empty without one.
 *
 * @typedef {View & {
 *   model: Model | null, run: Run | null, other: Model | null, other_run: Run | null, hover: Place | null,
 *   across: Place | null, lit: Lit, dark: boolean, model_step: number | null, ablated: Ablation | null, ran: Texts | null, is_old: boolean,
 * }} State
 * `ran` are the texts of the boxes at the start of the shown run; null for random tokens. `is_old` is true if the boxes
 * have other texts. `lit` are the places that the answer to a question marks.
 *
 * @typedef {{header: string[], rows: (string | number | null)[][]}} Table
 *
 * @typedef {import("./scene.js").Scene} Scene
 * @typedef {{name: string, scene?: () => Scene | null, table: () => Table, data: () => unknown}} Picture
 */
export {};
