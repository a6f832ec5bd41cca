/**
 * The stages from a text to a prediction, derived from the names of the tensors in the order of the computation. A
 * stage has columns. A column is a tensor with one row per token. No stage depends on the name of a model.
 *
 * @typedef {[name: string, shape: number[]]} Named
 * @typedef {{tensors: Named[], config: Record<string, any>, formulas: Record<string, string>}} Flow
 * `formulas` has the formula of the attention weights for each kind of attention.
 *
 * @typedef {"tokens" | "vector" | "add" | "matrix" | "lines" | "fold" | "output"} ColumnKind
 * @typedef {{
 *   kind: ColumnKind, title: string, tensor?: string | undefined, has_heads?: boolean, width?: number, side?: "source" | "target" | undefined,
 *   is_reversed?: boolean, rule?: "scores" | "masked" | "weights", weights?: string | undefined,
 *   block?: number, stack?: string, reads?: string[], beside?: string | undefined,
 * }} Column
 * A `vector` is a strip per token; `add` is the sum with the residual stream; a `matrix` has a row per token and a column per key;
 * `lines` go from the keys to the chosen token. `is_reversed` is true if the rows are in the order of reading, from last to first. `weights` is the tensor
 * of the weights of a matrix: a weight of 0 is hidden by the mask. A `fold` opens `block`, or the last stage of `stack`. A column reads the tensors `reads`, or what the
 * tensor `beside` reads; without both, the column before.
 *
 * @typedef {{
 *   id: string, title: string, sentence: string, formula: string, columns: Column[], attention?: string, chapter: string,
 *   part?: string, block?: number, also?: string[], short?: string,
 * }} Stage
 * `attention` is the path of the attention of the stage, `part` the sublayer to which it belongs, `also` the ids of the stages that it contains, `short` a title for little room.
 */

const GATES = /** @type {Record<string, Record<string, string>>} */ ({
  gru: { keep: "z", reset: "r", new: "n" }, lstm: { read: "o", write: "i", keep: "f", new: "g", cell: "c" },
}); // in an order in which no two lines of a cell cross
/** What the parts of a cell read in place of its input alone. */
const READS = /** @type {Record<string, Record<string, string[]>>} */ ({ gru: { new: ["input", "reset"], state: ["keep", "new"] }, lstm: { cell: ["write", "keep", "new"], state: ["read", "cell"] } });
const CHAPTERS = {
  tokens: "1, Text to ids", embedding: "2, Embeddings and positions", recurrent: "3, Sequence to sequence without attention",
  alignment: "4, Attention is alignment", attention: "5, Attention", block: "6, The block", output: "9, GPT",
};

/** Names, shapes and order of the tensors. */
class Names {
  /** @param {Named[]} tensors */
  constructor(tensors) {
    this.shapes = new Map(tensors);
    this.order = new Map(tensors.map(([name], i) => [name, i]));
  }

  /** @param {string} [name] */
  has(name = "") {
    return this.shapes.has(name);
  }

  /** Return the width of a tensor, its last size. @param {string} name */
  width(name) {
    return this.shapes.get(name)?.at(-1) ?? 0;
  }

  /** @param {string} first @param {string} second */
  isBefore(first, second) {
    return (this.order.get(first) ?? Infinity) < (this.order.get(second) ?? Infinity);
  }
}

/** Return the stacks of a model: "encoder", "decoder" or both. @param {Flow} flow */
export function stacksOf({ tensors }) {
  return ["encoder", "decoder"].filter((stack) => tensors.some(([name]) => name === `${stack}.embeddings`));
}

/** Return the number of blocks of a stack; 0 for recurrent cells. @param {Flow} flow @param {string} stack */
export function blocksOf({ tensors }, stack) {
  const found = tensors.map(([name]) => Number(new RegExp(`^${stack}\\.blocks\\.(\\d+)\\.residual$`).exec(name)?.[1] ?? -1));
  return Math.max(-1, ...found) + 1;
}

/** Return the number of heads of an attention: the first size of its scores. @param {Flow} flow @param {string} attention path */
export function headsOf({ tensors }, attention) {
  const shape = tensors.find(([name]) => name === `${attention}.scores`)?.[1] ?? [];
  return shape.length === 3 ? shape[0] ?? 1 : 1;
}

/** Return the index of the key-value head of a query head. @param {Flow} flow @param {string} attention path @param {number} head */
export function keyHead({ tensors }, attention, head) {
  const keys = tensors.find(([name]) => name === `${attention}.key`)?.[1]?.[0] ?? 1;
  return Math.floor((head * keys) / headsOf({ tensors, config: {}, formulas: {} }, attention));
}

/** Return the stages of a stack with one open block. @param {Flow} flow @param {{stack: string, block: number}} chosen */
export function stagesOf(flow, { stack, block }) {
  const names = new Names(flow.tensors);
  const n = blocksOf(flow, stack);
  const first = [tokens(stack, stacksOf(flow).length > 1), embedding(names, stack)];
  if (!n) return [...first, ...recurrent(names, flow, stack), ...(stack === "decoder" ? [output(flow.config, names.isBefore("decoder.hidden", "decoder.cross_attn.context") ? ["decoder.hidden", "decoder.cross_attn.context"] : ["decoder.hidden"])] : [])];
  const stages = [...first, ...blockStages(names, flow, stack, block)];
  const before = folded(0, block);
  const after = folded(block + 1, n);
  if (before) stages[2]?.columns.unshift(before);
  if (after) stages.at(-1)?.columns.push(after);
  stages.push(final(names, flow, stack));
  const isLast = stack === "decoder" || !stacksOf(flow).includes("decoder");
  return isLast ? [...stages, output(flow.config)] : stages;
}

/** Return stages in which a norm is part of the stage after it, or of the last stage. @param {Stage[]} stages */
export function withoutNorms(stages) {
  const isNorm = (/** @type {Stage | undefined} */ stage) => stage !== undefined && /norm$|^final$/.test(stage.id);
  return stages.filter((stage) => !isNorm(stage)).map((stage) => {
    const [before, after] = [stages[stages.indexOf(stage) - 1], stages[stages.indexOf(stage) + 1]];
    const first = before && { ...before, sentence: before.sentence.replace(/\. The .*/, ".") };
    const parts = [first, stage, after === stages.at(-1) ? after : undefined].filter((one) => one !== undefined).filter((one) => one === stage || isNorm(one));
    return { ...stage, also: parts.map(({ id }) => id), sentence: parts.map(({ sentence }) => sentence).join(" "), columns: parts.flatMap(({ columns }) => columns) };
  });
}

/** Return the columns that each column reads, in the rows of its own side. @param {Stage[]} stages */
export function inputsOf(stages) {
  const all = stages.flatMap(({ columns }) => columns).filter(({ kind, side }) => kind !== "output" && (!side || kind === "matrix" || kind === "lines"));
  /** @type {Map<Column | undefined, Column[]>} */
  const inputs = new Map();
  for (const [i, column] of all.entries()) {
    const before = all.slice(0, i);
    const read = column.reads?.flatMap((name) => before.filter(({ tensor, title }) => name === (tensor ?? title))) ?? before.slice(-1);
    inputs.set(column, column.beside ? inputs.get(before.find(({ tensor }) => tensor === column.beside)) ?? [] : read);
  }
  return inputs;
}

/** @param {number} from @param {number} to @returns {Column | null} */
function folded(from, to) {
  if (from >= to) return null;
  const title = to - from === 1 ? `block ${from}` : `blocks ${from}–${to - 1}`;
  return { kind: "fold", title, width: 30, block: from === 0 ? to - 1 : from };
}

/** @param {string} stack @param {boolean} isPair @returns {Stage} */
function tokens(stack, isPair) {
  return {
    id: "tokens", title: "Tokens", chapter: CHAPTERS.tokens, formula: "text → ids",
    sentence: isPair && stack === "decoder" ? "The decoder begins with the start token. Then it reads the tokens of the target. Each row predicts the next target token."
      : `The tokenizer cuts the ${isPair ? "source" : "text"} into tokens. Each token has an id, its number in the vocabulary. One row of the picture is one token, with its position.`,
    columns: [{ kind: "tokens", title: "token" }],
  };
}

/** @param {Names} names @param {string} stack @returns {Stage} */
function embedding(names, stack) {
  const [token, position, sum] = [`${stack}.embeddings.tokens`, `${stack}.embeddings.positions`, `${stack}.embeddings`];
  const vector = (/** @type {string} */ title, /** @type {string} */ tensor, reads = {}) => ({ kind: /** @type {const} */ ("vector"), title, tensor, ...reads });
  const stage = { id: "embedding", title: "Embedding", chapter: CHAPTERS.embedding };
  if (!names.has(position)) {
    return {
      ...stage, columns: [vector("x", sum)], formula: "x = E[id]",
      sentence: `Each id selects a row of a table: the vector of the token. This vector enters the ${stack}.`,
    };
  }
  const tokens = names.has(token) ? [vector("token", token)] : []; // a table that both stacks share has the name of one stack only
  return {
    ...stage, columns: [...tokens, vector("position", position, { beside: tokens[0]?.tensor }), vector("x", sum, { reads: [tokens[0]?.tensor ?? "token", position] })], formula: "x = E[id] + P[position]",
    sentence: `The vector of the token and the vector of its position are added. This vector enters the ${stack}.`,
  };
}

/** @param {Names} names @param {Flow} flow @param {string} stack @param {number} block @returns {Stage[]} */
function blockStages(names, flow, stack, block) {
  const { config } = flow;
  const path = `${stack}.blocks.${block}`;
  const parts = ["self_attn", "cross_attn", "ff"].filter((part) => names.has(`${path}.${part}`));
  return parts.flatMap((part, i) => {
    const [here, norm] = [`${path}.${part}`, `${path}.${part}_norm`];
    const isPre = !names.has(norm) || names.isBefore(norm, here); // no tensor: both sublayers share a norm, or only outputs are normalised
    const next = parts[i + 1] ? `${path}.${parts[i + 1]}_norm.input` : `${path}.residual`;
    const stages = part === "ff" ? feedForward(names, config, path) : attention(names, flow, path, part);
    if (names.isBefore(norm, here)) {
      stages.unshift({
        id: `${part}.norm`, title: "Norm", chapter: CHAPTERS.block, formula: config.norm === "rmsnorm" ? "y = x / √(mean(x²) + ε) · w" : "y = (x − mean) / √(variance + ε) · w + b",
        sentence: "The vector of each token is scaled to a common size. The sublayer reads this copy. The residual stream itself does not change.",
        columns: [{ kind: "vector", title: "norm", tensor: norm }],
      });
    }
    const last = /** @type {Stage} */ (stages.at(-1));
    if (config.norm_order?.startsWith("parallel") && part === "ff") Object.assign(stages[0]?.columns[0] ?? {}, { beside: `${path}.self_attn${names.has(norm) ? "_norm" : ".query"}` });
    const added = names.has(`${here}_out_norm`) ? `${here}_out_norm` : here;
    last.columns.push({ kind: "vector", title: part === "ff" ? "output" : "joined", tensor: added }, { kind: "add", title: (config.residual_scale ?? 1) === 1 ? "⊕" : `⊕ ${config.residual_scale} ·` });
    if (config.norm_order?.startsWith("parallel") && parts[i + 1] === "ff") { // the sum has no name before the feed-forward is added
      last.sentence += " The feed-forward layer reads the same vectors x, and both results are added to them.";
      return stages.map((stage) => ({ ...stage, part, block }));
    }
    if (isPre && names.has(next)) last.columns.push({ kind: "vector", title: "x", tensor: next });
    if (!isPre) {
      last.columns.push({ kind: "vector", title: "norm(x + …)", tensor: norm });
      last.sentence += " The result is added to the residual stream, and the sum is normalised.";
    }
    return stages.map((stage) => ({ ...stage, part, block }));
  });
}

/** @param {Record<string, any>} config @param {boolean} isSelf @param {string} path of the block */
function positionRule(config, isSelf, path) {
  if (!isSelf) return "";
  const bases = config.positions?.base_pattern ?? [];
  if (bases.length && !bases[Number(path.split(".").at(-1)) % bases.length]) return " This layer has no positions: q and k are not rotated.";
  if (config.positions?.kind === "rotary") return " q and k are rotated by angles that grow with the position (rotary positions), so that q·k depends on the distance.";
  return "";
}

/** @param {Names} names @param {Flow} flow @param {string} path @param {string} part @returns {Stage[]} */
function attention(names, { config, formulas }, path, part) {
  const here = `${path}.${part}`;
  const isSelf = part === "self_attn";
  const stack = path.split(".")[0] ?? "";
  const hasMask = isSelf && (stack === "decoder" || config[stack]?.window_pattern?.some(Boolean)); // an encoder reads the whole text
  const side = isSelf ? undefined : /** @type {const} */ ("source");
  /** @type {Column} */
  const masked = { kind: "matrix", title: "mask", tensor: `${here}.scores`, has_heads: true, rule: "masked", weights: `${here}.weights` };
  const what = isSelf ? "Each" : "Cross-attention: each";
  const width = names.width(`${here}.query`);
  const keys = isSelf ? "of all tokens" : "of the source tokens, whose vectors the encoder has computed";
  return [
    {
      id: `${part}.heads`, title: isSelf ? "Query, key, value" : "Query, key, value (cross)", chapter: CHAPTERS.attention, attention: here,
      formula: isSelf ? "q = W_Q x,  k = W_K x,  v = W_V x" : "q = W_Q x,  k = W_K s,  v = W_V s",
      sentence: `${what} token gets a query (what it looks for)${isSelf ? ", a key (what it offers) and a value (what it gives)." : ". The keys and values are those of the source tokens."} Each has ${width} numbers in this head.${positionRule(config, isSelf, path)}`,
      columns: [
        { kind: "vector", title: "q", tensor: `${here}.query`, has_heads: true, width: 34 },
        ...sourceTokens(side), ...(side ? encoded(side) : []),
        { kind: "vector", title: "k", tensor: `${here}.key`, has_heads: true, width: 34, side, beside: `${here}.query` },
        { kind: "vector", title: "v", tensor: `${here}.value`, has_heads: true, width: 34, side, beside: `${here}.query` },
      ],
    },
    {
      id: `${part}.scores`, title: isSelf ? "Attention" : "Attention (cross)", chapter: isSelf ? CHAPTERS.attention : CHAPTERS.alignment, attention: here,
      formula: formulas[isSelf ? stack : "cross"] ?? "", sentence: `The query of a token is compared with the keys ${keys}.${hasMask ? " The mask hides the keys that the query may not attend to." : ""} Softmax turns the scores into weights that sum to 1.`,
      columns: [
        { kind: "matrix", title: "scores", tensor: `${here}.scores`, has_heads: true, rule: "scores", side, reads: [`${here}.query`, `${here}.key`] },
        ...(hasMask ? [masked] : []),
        { kind: "matrix", title: "weights", tensor: `${here}.weights`, has_heads: true, rule: "weights", side, weights: `${here}.weights` },
      ],
    },
    {
      id: `${part}.values`, title: isSelf ? "Values" : "Values (cross)", chapter: CHAPTERS.attention, attention: here, formula: "context = Σ weight · v;  x ← x + W_O [head 0; head 1; …]",
      sentence: "Each token takes the values of the tokens that it looks at, in proportion to the weights. The heads are joined, multiplied by W_O, and added to the residual stream.",
      columns: [
        ...sourceTokens(side),
        { kind: "lines", title: "weight · v", tensor: `${here}.weights`, has_heads: true, side, width: 56, reads: [`${here}.weights`, `${here}.value`] },
        { kind: "vector", title: "context", tensor: `${here}.context`, has_heads: true, width: 34 },
      ],
    },
  ];
}

/** @param {"source" | undefined} side @returns {Column[]} */
const sourceTokens = (side) => (side ? [{ kind: "tokens", title: "source", side, width: 92 }] : []);

/** Return the encoder as one column, which leads to it, and the vectors of the source tokens that it has computed. @param {"source"} side @returns {Column[]} */
const encoded = (side) => [{ kind: "fold", title: "encoder", stack: "encoder", side, width: 24 }, { kind: "vector", title: "s", tensor: "encoder.final", side, width: 34 }];

/** @param {Names} names @param {Record<string, any>} config @param {string} path @returns {Stage[]} */
function feedForward(names, config, path) {
  if (names.has(`${path}.ff.router`)) return [experts(names, path)];
  const act = config.activation ?? "f";
  const hidden = config.gated_ff ? `${act}(W_gate x) · (W_up x)` : `${act}(W_up x)`;
  return [{
    id: "ff", title: "Feed-forward", short: "FF", chapter: CHAPTERS.block, formula: `x ← x + W_down h;  h = ${hidden}`,
    sentence: `Each token is computed separately. ${names.width(`${path}.ff.activations`)} neurons read its vector, and each active neuron adds its own direction to the residual stream.`,
    columns: [{ kind: "vector", title: "neurons", tensor: `${path}.ff.activations`, width: 64 }],
  }];
}

/** @param {Names} names @param {string} path @returns {Stage} */
function experts(names, path) {
  return {
    id: "ff", title: "Experts", chapter: CHAPTERS.block, formula: "x ← x + Σ weight · expert(x)",
    sentence: `Each token is computed separately. A router gives weights to a few of the ${names.width(`${path}.ff.router`)} experts. Each expert is a feed-forward layer. The other experts do not read the token.`,
    columns: [{ kind: "vector", title: "weights of the experts", tensor: `${path}.ff.router`, width: 64 }],
  };
}

/** @param {Names} names @param {Flow} flow @param {string} stack @returns {Stage} */
function final(names, flow, stack) {
  const hasDecoder = stack === "encoder" && stacksOf(flow).includes("decoder");
  const isNormed = names.has(`${stack}.final_norm`);
  const target = hasDecoder ? "The cross-attention of the decoder computes its keys and values from these vectors." : "The head of the model reads these vectors.";
  return {
    id: "final", title: isNormed ? "Final norm" : "Output of the stack", chapter: CHAPTERS.block, formula: isNormed ? "h = norm(x)" : "h = x",
    sentence: `${isNormed ? "The residual stream is normalised once more. " : ""}${target}`,
    columns: [{ kind: "vector", title: "h", tensor: `${stack}.final` }],
  };
}

/** What the head of a model for whole texts reads, by its pooling. @type {Record<string, string>} */
const POOLED = {
  first: "The vector of the first token", last: "The vector of the last token", mean: "The mean of the vectors of all tokens", max: "The largest number of all tokens, in each place of the vector,",
};

/** @param {Record<string, any>} config @param {string[]} [reads] tensors of which the head reads a function that no stage before shows @returns {Stage} */
function output({ head }, reads) {
  /** @type {Column[]} */
  const read = reads ? [{ kind: "vector", title: "h", tensor: "hidden", reads }] : [];
  return {
    id: "output", title: "Prediction", chapter: CHAPTERS.output, formula: "p = softmax(W h)",
    sentence: `${POOLED[head?.pooling] ?? "The vector of the chosen token"} gives a score (logit) for each possible answer. Softmax turns the scores into probabilities that sum to 1.`,
    columns: [...read, { kind: "output", title: "probability", width: 214 }],
  };
}

/** @param {Names} names @param {Flow} flow @param {string} stack @returns {Stage[]} */
function recurrent(names, { config, formulas }, stack) {
  const all = [...names.shapes.keys()].filter((name) => name.startsWith(`${stack}.cells.`));
  const layers = [...new Set(all.map((name) => name.split(".").slice(0, -1).join(".")))];
  /** Return the tensors that give the states of some layers. @param {string[]} some */
  const statesOf = (some) => some.flatMap((layer) => (names.has(`${layer}.state`) ? ["state"] : READS[config.cell]?.state ?? []).map((name) => `${layer}.${name}`));
  const below = (/** @type {string} */ layer) => layers.filter((other) => Number(other.split(".")[2]) === Number(layer.split(".")[2]) - 1);
  const inputs = (layer = "") => (below(layer).length ? statesOf(below(layer)) : [`${stack}.embeddings`, "decoder.cross_attn.context"]);
  const cells = layers.map((layer, i) => cellStage(all.filter((name) => name.startsWith(`${layer}.`)), layer, config, i, layers.length, inputs(layer)));
  if (stack === "encoder") {
    return [...cells, {
      id: "memory", title: "States", chapter: CHAPTERS.recurrent, formula: layers.length > 1 && layers.some((name) => name.endsWith("backward")) ? "hⱼ = [→hⱼ; ←hⱼ]" : "hⱼ",
      sentence: "The encoder has one state per source token. Attention reads all states. The last state initialises the decoder.",
      columns: [{ kind: "vector", title: "memory", tensor: "encoder.memory", width: 64, reads: statesOf(layers.filter((name) => name.split(".")[2] === layers.at(-1)?.split(".")[2])) }],
    }];
  }
  const hidden = { kind: /** @type {const} */ ("vector"), title: "s", tensor: "decoder.hidden", reads: READS[config.cell] ? statesOf(layers.slice(-1)) : inputs(layers.at(-1)) };
  const looks = names.has("decoder.cross_attn.weights") ? [alignmentStage(formulas.cross ?? "")] : [];
  if (!cells.length) cells.push({ id: "cell", title: "Recurrent step", chapter: CHAPTERS.recurrent, formula: "s = tanh(W y + U s′)", sentence: "The new state is a function of the token and of the state before it.", columns: [] });
  cells.at(-1)?.columns.push(hidden);
  const isBefore = names.isBefore("decoder.cross_attn.weights", "decoder.hidden");
  return isBefore ? [...looks, ...cells] : [...cells, ...looks];
}

/** @param {string[]} tensors @param {string} layer @param {Record<string, any>} config @param {number} i @param {number} n @param {string[]} inputs tensors that its gates read @returns {Stage} */
function cellStage(tensors, layer, config, i, n, inputs) {
  const isReversed = layer.endsWith("backward") !== Boolean(config.reverse_source && layer.startsWith("encoder"));
  const formulas = /** @type {Record<string, string>} */ ({
    gru: "h = (1 − z) ∘ n + z ∘ h′;  n = tanh(W x + r ∘ U h′)", lstm: "c = f ∘ c′ + i ∘ g;  h = o ∘ tanh(c)", rnn: "h = tanh(W x + U h′)",
  });
  const words = /** @type {Record<string, string>} */ ({
    gru: "The keep gate z decides how much of the old state h′ is kept. The reset gate r decides how much of h′ the new content n uses.",
    lstm: "The keep gate f decides how much of the old cell c′ is kept, and the write gate i how much of the new content g is added. The read gate o decides how much of the cell enters the state.",
    rnn: "The new state is a function of the token and of the state h′ before it.",
  });
  const label = n > 1 ? ` ${layer.split(".").slice(2).join(", ").replace(/^(\d+)/, "layer $1")}` : "";
  return {
    id: `cell${i}`, title: `Recurrent step${label}`, chapter: CHAPTERS.recurrent, formula: formulas[config.cell] ?? "", part: layer,
    sentence: `The tokens are read one after the other${isReversed ? ", from the last to the first" : ""}. ${words[config.cell] ?? ""}`,
    columns: [...Object.keys(GATES[config.cell] ?? {}), "state"].filter((name) => tensors.includes(`${layer}.${name}`)).map((name) => ({
      kind: /** @type {const} */ ("vector"), title: GATES[config.cell]?.[name] ?? "h", tensor: `${layer}.${name}`, width: 38, is_reversed: isReversed && layer.startsWith("encoder"),
      reads: (READS[config.cell]?.[name] ?? ["input"]).flatMap((read) => (read === "input" ? inputs : [`${layer}.${read}`])),
    })),
  };
}

/** @param {string} formula of the weights @returns {Stage} */
function alignmentStage(formula) {
  return {
    id: "alignment", title: "Attention", chapter: CHAPTERS.alignment, attention: "decoder.cross_attn",
    formula: `${formula};  context = Σ weight · k`,
    sentence: "The state q of the decoder is compared with each state k of the encoder. The weights sum to 1 and determine from which states this step reads. The context is the weighted sum.",
    columns: [
      { kind: "matrix", title: "scores", tensor: "decoder.cross_attn.scores", has_heads: true, rule: "scores", side: "source", reads: ["decoder.hidden"] },
      { kind: "matrix", title: "weights", tensor: "decoder.cross_attn.weights", has_heads: true, rule: "weights", side: "source", weights: "decoder.cross_attn.weights" },
      ...sourceTokens("source"),
      { kind: "lines", title: "weight · k", tensor: "decoder.cross_attn.weights", has_heads: true, side: "source", width: 56 },
      { kind: "vector", title: "context", tensor: "decoder.cross_attn.context", has_heads: true, width: 44 },
    ],
  };
}
