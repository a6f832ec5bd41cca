/**
 * Types of the answers of the server, and of the state of the page. This module contains no code.
 *
 * @typedef {"decoder" | "encoder" | "encoder-decoder" | "recurrent"} ModelKind
 * @typedef {"source" | "target" | "written"} Side
 * @typedef {[id: number, text: string, probability: number]} Candidate
 *
 * @typedef {{
 *   id: string, name: string, folder: string, kind: ModelKind, verb: string, learned: string, is_causal: boolean,
 *   has_head_over_tokens: boolean, parameters: number, vocab_size: number, max_len: number, step: number | null,
 *   mask: string | null, labels: string[], is_multi_label: boolean, attention: Record<string, {layers: number, heads: number}>, formulas: Record<string, string>,
 *   parts: {name: string, parameters: number}[],
 *   architecture: {title: string, rows: [string, string][]}[],
 *   curves: Record<string, [number, number][]> | null, checkpoints: number[],
 *   examples: Example[], generation: Record<string, number | string>, end_ids: number[],
 * }} Model
 *
 * @typedef {{name: string, doc: string, folder: string, state: "absent" | "training" | "stopped" | "ready", step: number, max_steps: number}}
 *   GalleryModel
 * @typedef {{model: string | null, folder: string, gallery: GalleryModel[] | null}} Session
 *
 * @typedef {{text?: string, source?: string, target?: string | null}} Example
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
 *   labels: {name: string, probability: number}[] | null, number: number | null, unknown: string, seconds: number,
 * }} Run
 *
 * @typedef {Record<string, number | null>} HeadScores
 * @typedef {{
 *   name: string, kind: string, layer: number, head: number, score: number | null, uniform: number | null, random: number | null,
 *   random_uniform: number | null, is_found: boolean,
 * }} BestHead
 * @typedef {{
 *   names: Record<string, string>, margin: number, best: BestHead[],
 *   kinds: Record<string, {heads: HeadScores[][], uniform: HeadScores[]}>,
 * }} Scores
 *
 * @typedef {{rows: Side, columns: Side, weights: number[][], links: [number, number, number][]}} Alignment
 *
 * @typedef {{top: Candidate[], next: number | null, rank: number | null}} LensCell
 * @typedef {{layers: string[], cells: LensCell[][]}} Lens
 *
 * @typedef {{log_prob: number | null, top: Candidate[]}} Position
 * @typedef {{loss: number | null, positions: Position[], labels: Run["labels"], number: number | null}} Outcome
 * @typedef {{run: string, measure?: string, before: Outcome, after: Outcome}} Ablation
 * @typedef {{
 *   feed_forward: Record<string, number[]>, layers: Record<string, number[]>, loss: number, measure?: string, [kind: string]: any,
 * }} Effects
 *
 * @typedef {{
 *   stack: string, tokens_clean: string[], tokens_corrupted: string[], target: string[] | null, layers: string[], map: number[][], clean: number,
 *   corrupted: number, answer: string, wrong: string, unknown: string,
 * }} Patching
 *
 * @typedef {{top: Candidate[], entropy: number, text: string, logits: {shape: string, zlib: string}}} Next
 *
 * @typedef {{
 *   id: number, parent: number | null, token: string, token_id: number, log_prob: number, step_log_prob: number,
 *   length: number, state: "root" | "kept" | "pruned" | "finished",
 * }} BeamNode
 * @typedef {{node: number, text: string, log_prob: number, score: number, ended: boolean}} BeamResult
 * @typedef {{nodes: BeamNode[], results: BeamResult[], unknown: string}} BeamTree
 *
 * @typedef {{folder: string, offset: number, lines: Record<string, any>[], is_running: boolean, checkpoints: number[], max_steps: number | null,
 *   model_step: number | null}} Live
 *
 * @typedef {{side: Side, index: number}} Place
 *
 * @typedef {{
 *   text: string, source: string, target: string, panel: string, kind: string, layer: number, head: number, pos: number,
 *   temperature: number, top_k: number, top_p: number, shown: string, all: number, badge: string, colour: string,
 *   card: number, norm: number, lens: string, align_layer: number, align_head: number, off: string, mean: number,
 *   beam: number, penalty: number, formula: string, pruned: number, step: number, folder: string, clean: string,
 *   corrupted: string, answer: string, wrong: string, prefix: string, stack: string, checkpoint: string,
 * }} View
 *
 * @typedef {{text: string, source: string, target: string}} Texts
 *
 * @typedef {View & {
 *   model: Model | null, run: Run | null, other: Model | null, other_run: Run | null, hover: Place | null,
 *   across: Place | null, dark: boolean, model_step: number | null, ablated: Ablation | null, ran: Texts | null, is_old: boolean,
 * }} State
 * `ran` are the texts of the boxes when the run that is shown began, null for random tokens; `is_old` is true if the boxes have other texts.
 *
 * @typedef {{header: string[], rows: (string | number | null)[][]}} Table
 *
 * @typedef {import("./scene.js").Scene} Scene
 * @typedef {{name: string, scene: () => Scene | null, table: () => Table, data: () => unknown}} Picture
 */
export {};
