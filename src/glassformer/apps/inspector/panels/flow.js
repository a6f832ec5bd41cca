/**
 * Flow: the computation from the text to a prediction, drawn with the numbers of this model.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Column, Flow, Stage } from "../page/stages.js"
 * @import { Drawing, Lane, Rows } from "../page/flow_scene.js"
 */

import { Latest, isQuick, kindsOf } from "../page/app.js";
import { floats } from "../page/source.js";
import { button, fill, h, isLecture, numberOptions, select } from "../page/dom.js";
import { numberLines } from "../page/flow_numbers.js";
import { TALL, columnLayout, flowScene, laneOf, rowOf } from "../page/flow_scene.js";
import { frame } from "../page/frame.js";
import { clearestHead } from "../page/grid.js";
import { labelAfter, labelsOf } from "../page/letters.js";
import { markTokens } from "../page/link.js";
import { leftPart, sceneElement } from "../page/scene.js";
import { byProbability, fixed, visible } from "../page/text.js";
import { barAt, barsOfVector, hitAt, hitText, zoomed } from "../page/zoom.js";
import { blocksOf, headsOf, keyHead, stacksOf, stagesOf, withoutNorms } from "../page/stages.js";
import { mainSide, mainTokens, positionText, selectedPosition, tokensBefore } from "../page/state.js";
import { headLinks, unitTab } from "./unit.js";

/** @type {Tab} */
export const flowTab = { id: "flow", title: "Flow", create: createFlow, exists: () => true, route: "/flow" };

/** Number of tokens per request. Requests begin at multiples of `STRIDE`, so that they are found in the cache. */
const COUNT = 64;
const STRIDE = 32;
const PAUSE_MS = 2600;
/** What the line below the picture contains while the pointer is elsewhere. */
const POINT = "Point at a cell to read its numbers. Click a strip to see all of them.";

/** Return the stack, the block, the head and the stage of a text such as "decoder.0.2.scores". @param {string} text */
export function readPlace(text) {
  const [stack = "", block = "0", head = "0", ...stage] = text.split(".");
  const number = (/** @type {string} */ word) => (/^\d+$/.test(word) ? Number(word) : 0);
  return { stack, block: number(block), head: number(head), stage: stage.join(".") };
}

/** @param {App} app @returns {Panel} */
function createFlow(app) {
  const { store } = app;
  /** The block and the head that are open first, for each stack: an induction head, or those with the clearest attention. @type {Record<string, {block: number, head: number, copies?: boolean}>} */
  let clearest = {};
  /** @type {Flow | null} */
  let flow = null;
  /** @type {Map<string, Rows>} */
  let loaded = new Map();
  /** The chosen source token, and the chosen key; -1 for the key with the largest weight. */
  let [sourceRow, chosenKey] = [0, -1];
  /** Tensor of the vector whose numbers are shown as bars, if the stage has it. */
  let chosenVector = "";
  let timer = 0;
  /** @type {{drawing: Drawing, layout: ReturnType<typeof columnLayout>} | null} */
  let drawn = null;

  const [blocks, heads] = [select("block", [], (block) => go({ block: Number(block) })), select("head", [], (head) => go({ head: Number(head) }))];
  const back = button("← back", () => step(-1), { title: "Previous stage (key ←)", class: "flow-back" });
  const next = button("next →", () => step(1), { title: "Next stage (key →)", class: "primary flow-next" });
  const play = button("play", () => toggle(), { title: "Show one stage after the other" });
  const names = h("div", { class: "flow-stages", role: "group", "aria-label": "Stages" });
  const place = h("div", { class: "flow-picture", tabindex: 0, role: "img", "aria-label": "Flow of the data through the model" });
  const [cut, under, zoomTitle, zoomBars] = [h("p", { class: "about" }), h("p", { class: "about flow-under" }, POINT), h("h3"), h("div", { class: "flow-bars" })];
  const zoom = h("div", { class: "flow-zoom" }, zoomTitle, zoomBars);
  const title = h("h3");
  const sentence = h("p", { class: "flow-sentence" });
  const formula = h("p", { class: "formula" });
  const lines = h("ul", { class: "flow-numbers" });
  const links = h("div", { class: "row" });
  const ofSourceToken = h("span", {}, " The orange line is that of a source token; click a key to choose it.");
  const legend = h("p", { class: "about" }, "A row is a token, and a strip is a vector: blue is positive, orange is negative. The line is the way of the chosen token. The keys ↑ and ↓ choose another one. The orange frame in a map is the chosen key.", ofSourceToken);
  const card = frame({
    title: "Flow",
    picture: () => {
      if (!drawn) return null;
      const { drawing, layout } = drawn;
      const stage = drawing.stages[drawing.current];
      const vectors = (stage?.columns ?? []).filter((column) => column.tensor && drawing.rows(column));
      return {
        name: `flow-${stage?.id ?? ""}`, scene: () => flowScene(drawing, layout),
        data: () => ({
          stage: stage?.title, formula: stage?.formula, tokens: drawing.lane.labels,
          tensors: vectors.map((column) => ({ name: column.tensor, rows: tableRows(drawing, column) })),
        }),
        table: () => ({
          header: ["tensor", "token", "numbers"],
          rows: vectors.flatMap((column) => tableRows(drawing, column).map(({ token, values }) =>
            [column.title, visible(token), values.map((x) => fixed(x, 3)).join(" ")])),
        }),
      };
    },
  }, names, sentence, place, under, legend, cut, zoom,
  h("div", { class: "flow-text" }, formula, lines, links));
  card.title.after(back, next, play, blocks.element, heads.element, title);
  const latest = new Latest(app, card.body);

  card.element.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLSelectElement || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === place && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      chooseRow(laneFor(here().stack).row + (event.key === "ArrowDown" ? 1 : -1));
    }
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    event.preventDefault();
    step(event.key === "ArrowRight" ? 1 : -1);
  });
  place.addEventListener("click", (event) => choose(event));
  place.addEventListener("pointermove", (event) => {
    const hit = hitOf(event);
    under.textContent = (hit && drawn && hitText(drawn.drawing, hit)) || POINT;
  });
  place.addEventListener("pointerleave", () => { under.textContent = POINT; });

  /** Return the shown stack, block, head and stage. Values that the model does not have are replaced. */
  function here() {
    const wanted = readPlace(store.state.flow);
    const known = flow ? stacksOf(flow) : [];
    const stack = known.includes(wanted.stack) ? wanted.stack : known[0] ?? "decoder";
    const first = known.includes(wanted.stack) ? wanted : clearest[stack] ?? wanted;
    const block = flow ? Math.max(0, Math.min(first.block, blocksOf(flow, stack) - 1)) : 0;
    const stages = flow ? shownStages(stagesOf(flow, { stack, block })) : [];
    const found = stages.findIndex(({ id, also }) => id === wanted.stage || also?.includes(wanted.stage));
    return { stack, block, head: first.head, stages, current: Math.max(0, found) };
  }

  /** Leave out the last stage of a model without probabilities, and the norms in a lecture. @param {Stage[]} stages */
  function shownStages(stages) {
    const all = bars().length ? stages : stages.filter((stage) => stage.id !== "output");
    return isLecture() ? withoutNorms(all) : all;
  }

  /** @param {{stack?: string, block?: number, head?: number, stage?: string}} change */
  function go(change) {
    const now = here();
    const id = change.stage ?? now.stages[now.current]?.id ?? "";
    const of = change.stack === undefined || change.stack === now.stack ? now : clearest[change.stack];
    const to = { stack: now.stack, block: of?.block ?? 0, head: of?.head ?? 0, ...change };
    if (to.stack !== now.stack || to.block !== now.block || to.head !== now.head) chosenKey = -1;
    store.set({ flow: `${to.stack}.${to.block}.${to.head}.${id}` });
    if (isLecture()) place.focus({ preventScroll: true }); // the arrow keys do not change a list
  }

  /** Return the stages of all stacks, in the order of the computation. */
  function path() {
    const { stack, stages } = here();
    const all = flow ? stacksOf(flow) : [];
    return all.flatMap((name) => (name === stack ? stages : shownStages(stagesOf(/** @type {Flow} */ (flow), { stack: name, block: clearest[name]?.block ?? 0 }))).map((stage) => ({ stack: name, stage })));
  }

  /** Return the index of the current stage in this path. */
  function placeInPath() {
    const { stack, stages, current } = here();
    return path().findIndex((one) => one.stack === stack && one.stage.id === stages[current]?.id);
  }

  /** Choose a token of the shown stack. @param {number} row */
  function chooseRow(row) {
    const { side, labels } = laneFor(here().stack);
    if (row < 0 || row >= labels.length) return;
    if (side === mainSide(store.state)) store.set({ pos: row });
    else {
      sourceRow = row;
      load();
    }
  }

  /** @param {number} by */
  function step(by) {
    const to = path()[placeInPath() + by];
    if (!to) stop();
    else go({ stack: to.stack, stage: to.stage.id });
  }

  function toggle() {
    if (timer) return stop();
    if (next.disabled) go({ stack: path()[0]?.stack ?? "", stage: "" });
    play.textContent = "stop";
    timer = setInterval(() => {
      if (card.element.isConnected) step(1);
      else stop();
    }, PAUSE_MS);
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "play";
  }

  /** Return labels and probabilities for the chosen token, or for the text. */
  function bars() {
    const { run } = store.state;
    if (run?.labels) return byProbability(run.labels).map(({ name, probability }) => ({ label: name, value: probability }));
    const position = selectedPosition(store.state);
    const before = tokensBefore(store.state, position);
    return (mainTokens(store.state)[position]?.top ?? []).map(([, text, value]) => ({ label: labelAfter(before, text), value }));
  }

  /** Return the token whose vector gives the bars; -1 if all tokens do. */
  function readToken() {
    const { run, model } = store.state;
    if (!run?.labels) return selectedPosition(store.state);
    return model?.pooling === "first" ? 0 : model?.pooling === "last" ? run.source.length - 1 : -1;
  }

  /** @param {string} stack @returns {Lane} */
  function laneFor(stack) {
    const side = stack === "encoder" && store.state.run?.source.length ? "source" : mainSide(store.state);
    const labels = labelsOf(store.state.run?.[side] ?? []);
    return side === mainSide(store.state) ? laneOf(side, labels, Math.max(0, selectedPosition(store.state))) : sourceLane();
  }

  function sourceLane() {
    const labels = labelsOf(store.state.run?.source ?? []);
    return laneOf("source", labels, Math.max(0, Math.min(sourceRow, labels.length - 1)));
  }

  /** Return the block and the head with the clearest attention of each stack, or its induction head; of a decoder with cross-attention, with this attention. @param {import("../page/types.js").Run} run */
  async function clearestOf(run) {
    const kinds = app.source.answers("/thumbnails") ? kindsOf(store.state).sort((a, b) => Number(a === "cross") - Number(b === "cross")) : [];
    // The scores need about 20 runs, on random tokens; the first picture of a large model does not wait for them
    const isSmall = app.source.answers("/scores") && isQuick(app, 20, run.source.length + run.target.length) && store.state.model?.kind !== "recurrent";
    const scores = isSmall ? /** @type {import("./attention.js").Scores} */ (await app.data.json(run, "scores")) : null;
    const copying = scores?.ranked.find(({ name, is_found: isFound }) => name === "induction" && isFound);
    const found = await Promise.all(kinds.map(async (kind) => [kind === "cross" ? "decoder" : kind, kind === copying?.kind
      ? { block: copying.layer, head: copying.head, copies: true } : clearestHead(await app.data.bytes(run, "thumbnails", { kind }))]));
    return Object.fromEntries(found);
  }

  /** Return the path of the attention of `clearestOf`. @param {string} stack @param {number} block */
  const clearestPath = (stack, block) => `${stack}.blocks.${block}.${stack === "decoder" && "cross" in (store.state.run?.attention ?? {}) ? "cross" : "self"}_attn`;

  /** Load the tensors of the columns, then draw. */
  function load() {
    const { run } = store.state;
    if (!run || !flow) return;
    const { stack, head, stages } = here();
    const [lane, source] = [laneFor(stack), sourceLane()];
    /** @type {Map<string, Promise<[string, Rows]>>} */
    const wanted = new Map();
    const want = (/** @type {string} */ tensor, /** @type {boolean} */ hasHeads, /** @type {boolean} */ ofSource, /** @type {boolean} */ isReversed) => {
      const id = keyOf(tensor, ofSource);
      if (!wanted.has(id)) wanted.set(id, rowsOf(tensor, hasHeads ? headFor(tensor, head) : undefined, ofSource ? source : lane, isReversed).then((rows) => [id, rows]));
    };
    for (const stage of stages) {
      for (const column of stage.columns) {
        if (column.tensor) want(column.tensor, Boolean(column.has_heads), isOfSource(column), Boolean(column.is_reversed));
        if (column.tensor?.endsWith("_norm") && flow.tensors.some(([name]) => name === `${column.tensor}.input`)) want(`${column.tensor}.input`, false, false, false);
      }
    }
    void latest.use(Promise.all(wanted.values()), (found) => {
      loaded = new Map(found);
      draw();
    });
  }

  /** Return true if the rows of a column are source tokens. The rows of a matrix are queries. @param {Column} column */
  const isOfSource = ({ side, kind }) => side === "source" && kind === "vector";

  /** @param {string} tensor @param {boolean} ofSource */
  const keyOf = (tensor, ofSource) => `${ofSource ? "source " : ""}${tensor}`;

  /** @param {string} tensor @param {number} head */
  function headFor(tensor, head) {
    const attention = tensor.replace(/\.\w+$/, "");
    const own = Math.min(head, headsOf(/** @type {Flow} */ (flow), attention) - 1);
    return /\.(key|value)$/.test(tensor) ? keyHead(/** @type {Flow} */ (flow), attention, own) : own;
  }

  /** @param {string} name @param {number | undefined} head @param {Lane} lane @param {boolean} isReversed @returns {Promise<Rows>} */
  async function rowsOf(name, head, lane, isReversed) {
    const run = /** @type {import("../page/types.js").Run} */ (store.state.run);
    const n = lane.labels.length;
    const first = isReversed ? STRIDE * Math.floor(Math.max(0, n - lane.to) / STRIDE) : STRIDE * Math.floor(lane.from / STRIDE);
    const { shape, buffer } = await app.data.bytes(run, "tensor", { name, head, first, count: COUNT });
    const [rows = 0, columns = 0] = shape;
    const values = floats(buffer);
    if (!isReversed) return { values, columns, first };
    const turned = new Float32Array(values.length);
    for (let i = 0; i < rows; i++) turned.set(values.subarray(i * columns, (i + 1) * columns), (rows - 1 - i) * columns);
    return { values: turned, columns, first: n - first - rows };
  }

  /** @param {Lane} lane of the keys @param {Stage | undefined} stage */
  function keyToken(lane, stage) {
    const weights = stage?.attention ? loaded.get(`${stage.attention}.weights`) : undefined;
    if (!weights) return -1;
    if (chosenKey >= 0 && chosenKey < lane.labels.length) return chosenKey;
    const own = rowOf(weights, laneFor(here().stack).row);
    return own.indexOf(Math.max(...own));
  }

  function draw() {
    if (!flow) return;
    const { stack, block, head, stages, current } = here();
    const stage = stages[current];
    const [lane, source] = [laneFor(stack), sourceLane()];
    const isCross = stage?.columns.some((column) => column.side === "source") ?? false;
    const key = keyToken(isCross ? source : lane, stage);
    drawControls({ stack, block, head, stages, current });
    const scale = flow.config.attention_scale ?? null;
    const numbers = stage ? numberLines({
      stage, row: lane.row, key, row_label: lane.labels[lane.row] ?? "", key_labels: isCross ? source.labels : lane.labels, scale, bars: bars(),
      rows: (tensor, side) => loaded.get(keyOf(tensor, side === "source")) ?? null,
    }) : [];
    title.textContent = stage ? `${placeInPath() + 1} of ${path().length}: ${titleOf(stage, stack)}` : "";
    place.setAttribute("aria-label", `Flow of the data through the model, ${title.textContent}; token ${lane.row}: ${lane.labels[lane.row]}`);
    const [nBlocks, first] = [blocksOf(flow, stack), clearest[stack]];
    const isClearest = stage?.attention === clearestPath(stack, block) && stage.id.endsWith(".scores") && first?.block === block && first.head === head;
    sentence.textContent = (stage?.sentence ?? "") + (isClearest ? first.copies ? ` Block ${block}, head ${head} is an induction head: it reads the token after an earlier occurrence of the same token.` : ` Of all heads, the weights of block ${block}, head ${head} change most from row to row.` : "") +
      (stage?.id === "ff" && nBlocks > 1 ? ` All ${nBlocks} blocks do these steps, each with its own weights: open another one above.` : "");
    const read = readToken();
    const labelled = store.state.run?.labels && (read < 0 ? "all rows" : `row ${read}: ${visible(lane.labels[read] ?? "")}`);
    if (stage?.id === "output" && labelled) sentence.textContent += ` The label reads ${labelled}.`;
    formula.textContent = stage?.formula ?? "";
    fill(lines, ...numbers.filter(Boolean).map((line) => h("li", {}, ...neuronLinks(line, `${stack}.${block}.neuron`))));
    cut.textContent = [lane, ...(isCross ? [source] : [])].filter(({ from, to, labels }) => to - from < labels.length)
      .map(({ side, from, to, labels }) => `Tokens ${from} to ${to - 1} of the ${labels.length} of the ${side === "source" ? "source" : "text"} are drawn, around the selected one.`).join(" ");
    cut.hidden = !cut.textContent;
    legend.hidden = isLecture() && placeInPath() > 0 && !isCross;
    ofSourceToken.hidden = !isCross;
    /** @type {Drawing} */
    const drawing = {
      stages, current, lane, source, key, alone: isLecture() && current > 0, room: place.clientWidth, tall: TALL[0] ?? 0, dark: store.state.dark, bars: bars(),
      read, predicts: labelled ? `label, from ${labelled}` : positionText(store.state, selectedPosition(store.state)),
      rows: (column) => loaded.get(keyOf(column.tensor ?? "", isOfSource(column))) ?? null,
    };
    drawPicture(drawing);
    drawZoom(drawing);
    drawLinks(stage, { stack, block, head });
    markTokens(store);
    card.refresh();
  }

  /** Draw the picture, in a lecture as large as the window, and else with rows that have room in the window. @param {Drawing} drawing */
  function drawPicture(drawing) {
    const layout = columnLayout(drawing);
    const [box, least] = [place.getBoundingClientRect(), isLecture() ? 0 : Math.min(layout.width, 1150)];
    const factor = Math.min(1.15, Math.max(place.clientWidth, least) / layout.width);
    const room = ((innerHeight - box.top - scrollY) * place.offsetWidth) / (box.width || 1); // a lecture enlarges the panel
    const fits = (/** @type {number} */ tall) => factor * (layout.top + layout.n * tall) <= room;
    drawing.tall = TALL.find(fits) ?? TALL.at(-1) ?? 0;
    drawn = { drawing, layout };
    const picture = sceneElement(flowScene(drawing, layout));
    for (const name of ["width", "height"]) picture.removeAttribute(name);
    Object.assign(picture.style, { minWidth: `${least}px`, maxWidth: `${(isLecture() ? 3 : 1.15) * layout.width}px`, ...(isLecture() ? { maxHeight: `${Math.max(200, room - 20)}px` } : {}) });
    fill(place, picture);
    if (place.scrollWidth > place.clientWidth + 1) place.append(leftPart(picture, (layout.columns[1]?.x ?? 0) - 3)); // the tokens stay in view
    reveal(layout.width);
  }

  /** Return the title of a stage, with its block, and its stack in a model with two stacks. @param {Stage} stage @param {string} stack */
  function titleOf({ title: name, block }, stack) {
    const all = /** @type {Flow} */ (flow);
    const half = stacksOf(all).length > 1 ? [`${stack[0]?.toUpperCase()}${stack.slice(1)}`] : [];
    return [...half, ...(block !== undefined && blocksOf(all, stack) > 1 ? [`block ${block}`] : []), name].join(" · ");
  }

  /** Scroll a picture that is wider than the page to the current stage. @param {number} width */
  function reveal(width) {
    const columns = drawn?.layout.columns.filter((one) => one.stage === drawn?.drawing.current) ?? [];
    const [left, right] = [columns[0]?.x ?? 0, (columns.at(-1)?.x ?? 0) + (columns.at(-1)?.width ?? 0)];
    const factor = place.scrollWidth / width;
    if (place.scrollWidth > place.clientWidth) place.scrollLeft = ((left + right) / 2) * factor - place.clientWidth / 2;
  }

  /** @param {{stack: string, block: number, head: number, stages: Stage[], current: number}} now */
  function drawControls({ stack, block, head, stages, current }) {
    const attention = stages[current]?.attention ?? stages.find((stage) => stage.attention)?.attention ?? "";
    const nHeads = headsOf(/** @type {Flow} */ (flow), attention);
    heads.setOptions(numberOptions(nHeads));
    heads.list.value = String(Math.min(head, nHeads - 1));
    heads.element.hidden = nHeads < 2;
    const nBlocks = blocksOf(/** @type {Flow} */ (flow), stack);
    blocks.setOptions(numberOptions(nBlocks));
    blocks.list.value = String(block);
    blocks.element.hidden = nBlocks < 2 || !isLecture(); // else, the stages have buttons of the blocks
    back.disabled = placeInPath() === 0;
    next.disabled = placeInPath() === path().length - 1;
    const hasFocus = names.contains(document.activeElement);
    fill(names, ...stacksOf(/** @type {Flow} */ (flow)).map((name) => stackRow(name, { stack, block, stages, current })));
    const chosen = /** @type {HTMLElement | null} */ (names.querySelector("[aria-pressed=true]"));
    const row = chosen?.closest(".flow-row");
    if (chosen && row) row.scrollLeft = chosen.offsetLeft - names.offsetLeft - 60; // on a phone, the stages are one line
    if (hasFocus) chosen?.focus();
  }

  /**
   * Return the stages of a stack, with a button for each block. The chosen block is open: it shows its own stages.
   * @param {string} name
   * @param {{stack: string, block: number, stages: Stage[], current: number}} now
   */
  function stackRow(name, { stack, block, stages, current }) {
    const all = /** @type {Flow} */ (flow);
    const own = name === stack ? stages : shownStages(stagesOf(all, { stack: name, block: 0 }));
    const isInBlock = stages[current]?.block !== undefined;
    const first = own.findIndex((stage) => stage.block !== undefined);
    const stageButton = (/** @type {Stage} */ stage) => button(stage.title, () => go({ stack: name, stage: stage.id }), { "aria-pressed": String(name === stack && stage === stages[current]), class: "quiet" });
    const blocks = Array.from({ length: first < 0 ? 0 : blocksOf(all, name) }, (_, i) => {
      if (name === stack && i === block) return h("span", { class: "open-block" }, h("span", { class: "about" }, `block ${i}`), ...own.filter((stage) => stage.block !== undefined).map(stageButton));
      const to = (isInBlock && name === stack ? stages[current] : own[first])?.id ?? "";
      return button(String(i), () => go({ stack: name, block: i, stage: to }), { class: "quiet closed-block", title: `Open block ${i}`, "aria-label": `block ${i}` });
    });
    const before = own.filter((stage, i) => stage.block === undefined && (first < 0 || i < first));
    const after = own.filter((stage, i) => stage.block === undefined && first >= 0 && i > first);
    const isRead = name === "encoder" && stacksOf(all).includes("decoder");
    return h("div", { class: "flow-row" }, stacksOf(all).length > 1 ? h("span", { class: "about" }, name) : null, ...before.map(stageButton), ...blocks, ...after.map(stageButton),
      isRead ? h("span", { class: "about" }, all.formulas.cross ? "↴ read by the attention of the decoder" : "↴ first state of the decoder") : null);
  }

  /** @param {Stage | undefined} stage @param {{stack: string, block: number, head: number}} now */
  function drawLinks(stage, { stack, block, head }) {
    const { model } = store.state;
    const found = [];
    if (stage?.attention && model) {
      const kind = stage.attention.endsWith("cross_attn") ? "cross" : stack;
      const own = model.attention[kind];
      found.push(...headLinks(app, kind, Math.min(block, (own?.layers ?? 1) - 1), Math.min(head, (own?.heads ?? 1) - 1)));
    }
    if (model?.has_head_over_tokens && model.kind !== "recurrent" && ["final", "output", "ff"].includes(stage?.id ?? "")) {
      found.push(button("Predictions of all layers", () => store.set({ panel: "lens" })));
    }
    fill(links, ...found, stage ? h("span", { class: "facts" }, `In the course: chapter ${stage.chapter}`) : null);
  }

  /** Return what the picture has under the pointer. @param {MouseEvent} event */
  function hitOf(event) {
    const picture = /** @type {Element} */ (event.target).closest("svg"); // the whole, or its left part
    if (!drawn || !picture) return null;
    const box = picture.getBoundingClientRect();
    const factor = picture.viewBox.baseVal.width / box.width;
    return hitAt(drawn.drawing, drawn.layout, (event.clientX - box.left) * factor, (event.clientY - box.top) * factor);
  }

  /** Choose a row, the key of a matrix or a vector, or open a folded block. @param {MouseEvent} event */
  function choose(event) {
    const hit = hitOf(event);
    if (!hit || !drawn) return;
    const { one: { column, stage: number }, row, key } = hit;
    const { lane, stages } = drawn.drawing;
    if (column.kind === "fold") return go(column.stack ? { stack: column.stack, stage: "final" } : { block: column.block ?? 0 });
    if (column.kind === "matrix") chosenKey = key;
    if (column.kind === "vector") chosenVector = column.tensor ?? "";
    const ofSource = column.side === "source" && column.kind !== "matrix";
    if (ofSource || (lane.side === "source" && mainSide(store.state) !== "source")) {
      if (ofSource) chosenKey = row;
      sourceRow = row;
    } else if (column.kind !== "output") store.set({ pos: row });
    const to = stages[number];
    if (to && number !== drawn.drawing.current && column.kind !== "tokens") go({ stage: to.id });
    else load();
  }

  /** Show all numbers of a vector of the stage as bars. @param {Drawing} drawing */
  function drawZoom(drawing) {
    const shown = isLecture() ? null : zoomed(drawing, chosenVector);
    zoom.hidden = !shown;
    if (!shown) return;
    const width = Math.max(300, card.body.clientWidth);
    zoomTitle.textContent = shown.title;
    const bars = sceneElement(barsOfVector(shown.values, width, drawing.dark));
    bars.setAttribute("aria-label", shown.title);
    const units = /\.ff\.activations$/.test(shown.tensor) && app.source.answers("/api/strongest") ? `${here().stack}.${here().block}.neuron` : "";
    bars.classList.toggle("is-link", Boolean(units));
    const numberAt = (/** @type {MouseEvent} */ { clientX }) => {
      const box = bars.getBoundingClientRect();
      return barAt(((clientX - box.left) * width) / box.width, width, shown.values.length);
    };
    bars.addEventListener("pointermove", (event) => { under.textContent = `number ${numberAt(event)} is ${fixed(shown.values[numberAt(event)], 4)}`; });
    if (units) bars.addEventListener("click", (event) => store.set({ panel: unitTab.id, unit: `${units}.${numberAt(event)}` }));
    fill(zoomBars, bars);
  }

  /** Return a line in which each neuron, such as "149: 5.87", leads to its strongest texts. @param {string} line @param {string} units */
  const neuronLinks = (line, units) => (!line.startsWith("strongest neurons: ") || !app.source.answers("/api/strongest") ? [line] : line.split(/(\d+: [^\s,]+)/).map((part, i) => (
    i % 2 ? button(part, () => store.set({ panel: unitTab.id, unit: `${units}.${parseInt(part)}` }), { class: "quiet", title: "The tokens that this neuron raises, and the texts in which it is most active" }) : part)));

  /** @param {Drawing} drawing @param {Column} column */
  function tableRows(drawing, column) {
    const rows = /** @type {Rows} */ (drawing.rows(column));
    const lane = isOfSource(column) ? drawing.source : drawing.lane;
    return Array.from({ length: lane.to - lane.from }, (_, i) => ({ token: lane.labels[lane.from + i] ?? "", values: Array.from(rowOf(rows, lane.from + i)) }));
  }

  return {
    element: h("div", { class: "panel" }, card.element),
    render(changed) {
      const { state } = store;
      if (changed.has("run") && state.run) {
        flow = null;
        chosenKey = -1;
        void latest.use(Promise.all([app.data.json(state.run, "flow"), clearestOf(state.run)]), ([value, found]) => {
          clearest = found;
          flow = { ...value, formulas: state.model?.formulas ?? {} };
          load();
        });
        return;
      }
      if (!flow) return;
      if (changed.has("pos")) chosenKey = -1;
      if (["flow", "pos"].some((key) => changed.has(key))) load();
      else if (["dark", "panel", "size"].some((key) => changed.has(key))) draw();
      if (["hover", "across"].some((key) => changed.has(key))) markTokens(store);
    },
  };
}
