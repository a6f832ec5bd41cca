/**
 * Heat map: a matrix of numbers on a canvas with labels, zoom and a cell cursor. Only the visible part is drawn, so a
 * matrix may have thousands of rows and columns.
 *
 * @import { Lit, Table } from "./types.js"
 * @import { Scene, Shape } from "./scene.js"
 */

import { colourOf, colourTable, css, fullRange, inkOn, maskedColour, scalePosition } from "./colours.js";
import { button, fill, h, isLecture, keepHeight, legendParts, tooltip } from "./dom.js";
import { pixels } from "./scene.js";
import { fixed, shortened } from "./text.js";
import { FONT, MONO, theme } from "./theme.js";

/**
 * @typedef {{
 *   rows: number, columns: number, values: ArrayLike<number>, row_labels: string[], column_labels: string[],
 *   row_axis: string, column_axis: string, scale: "sequential" | "diverging", range: [number, number], dark: boolean,
 *   cell_text?: (row: number, column: number) => string, cell?: [number, number], describe: (row: number, column: number) => string,
 *   unit?: string, plain_rows?: boolean, plain_columns?: boolean, masked?: ((row: number, column: number) => boolean) | undefined,
 * }} Matrix
 * Values are row by row; NaN is an empty cell, and a `masked` cell is grey. `cell` is the size of a cell in pixels at
 * zoom 1; without it, cells are square and fit the width. Labels are tokens unless `plain_rows` or `plain_columns` is true.
 *
 * @typedef {{
 *   label: string, onhover?: (row: number, column: number) => void, onleave?: () => void,
 *   onselect?: (row: number, column: number) => void,
 * }} Options
 *
 * @typedef {[x: number, y: number, width: number, height: number]} Box
 * @typedef {{
 *   context: CanvasRenderingContext2D, x0: number, y0: number, layout: Heatmap["layout"], visible: {row: number[], column: number[]},
 * }} Drawing the corner of the first cell, and the visible rows and columns: the first, and the one after the last
 */

const MIN_LABEL = 11;
/** Largest side in pixels of a square cell at zoom 1. */
const MAX_CELL = 44;
/** Smallest width of a cell in a lecture. */
const LECTURE_CELL = 40;
/** Smallest share of the size of `cell` at which all columns are shown without scrolling. */
const LEAST_SHARE = 0.65;

/** A heat map with its buttons. */
export class Heatmap {
  /** @param {Options} options */
  constructor(options) {
    this.options = options;
    /** @type {Matrix | null} */
    this.matrix = null;
    /** @type {HTMLCanvasElement | null} */
    this.pixels = null;
    this.zoom = 1;
    /** @type {[number, number] | null} */
    this.cursor = null;
    this.marked = { row: -1, column: -1 };
    this.isAnswer = false;
    /** The answer whose row was scrolled into view. @type {Lit} */
    this.revealed = null;

    this.canvas = h("canvas", { class: "heat-canvas" });
    this.space = h("div", { class: "heat-space" }, this.canvas);
    this.view = h("div", { class: "heat", tabindex: 0, role: "img", "aria-roledescription": "matrix" }, this.space);
    this.detail = h("p", { class: "detail", "aria-live": "polite" });
    this.legend = h("div", { class: "legend" });
    const zooms = h("div", { class: "zooms", role: "group", "aria-label": "Zoom" },
      button("−", () => this.setZoom(this.zoom / 1.5), { title: "Smaller cells (key −)", class: "quiet" }),
      button("fit", () => this.setZoom(1), { title: "Fit the width (key 0)", class: "quiet" }),
      button("+", () => this.setZoom(this.zoom * 1.5), { title: "Larger cells (key +)", class: "quiet" }));
    this.element = h("div", { class: "heatmap" }, this.view, h("div", { class: "heat-foot" }, this.detail, this.legend, zooms));

    this.view.addEventListener("scroll", () => this.draw());
    this.view.addEventListener("pointermove", (event) => this.#pointed(event, false));
    this.view.addEventListener("pointerleave", () => this.#leave());
    this.view.addEventListener("click", (event) => this.#pointed(event, true));
    this.view.addEventListener("keydown", (event) => this.#key(event));
    this.view.addEventListener("blur", () => this.#leave());
    this.view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.setZoom(this.zoom * (event.deltaY < 0 ? 1.2 : 1 / 1.2));
    }, { passive: false });
    new ResizeObserver(() => this.resize()).observe(this.element);
  }

  /** Show a matrix; the zoom stays if the shape is equal. @param {Matrix} matrix */
  update(matrix) {
    if (this.matrix?.rows !== matrix.rows || this.matrix.columns !== matrix.columns) {
      this.zoom = 1;
      this.cursor = null;
      this.revealed = null;
    }
    this.matrix = matrix;
    this.pixels = null;
    this.#drawLegend();
    this.resize();
    this.#describe();
  }

  /**
   * Mark the row and the column of the tokens under the pointer, or those of an answer: they are scrolled into view once,
   * and the other rows are dimmed.
   * @param {number} row @param {number} column @param {Lit} [lit] the places of the answer
   */
  mark(row, column, lit = null) {
    const isAnswer = Boolean(lit);
    if (row === this.marked.row && column === this.marked.column && isAnswer === this.isAnswer && (!lit || lit === this.revealed)) return;
    this.marked = { row, column };
    this.isAnswer = isAnswer;
    this.draw();
    if (lit && lit !== this.revealed) this.reveal(column, row);
    this.revealed = lit ?? this.revealed;
  }

  /** Scroll until a column is visible, and a row, also in the window. @param {number} column @param {number} [row] */
  reveal(column, row = -1) {
    if (!this.matrix || !this.element.clientWidth) return;
    const { top, height } = this.layout;
    this.#scrollTo(row, column);
    this.draw();
    if (row < 0) return;
    const box = this.view.getBoundingClientRect();
    const yOf = (/** @type {number} */ i) => box.top + (box.width / this.view.offsetWidth) * (top + i * height - this.view.scrollTop); // a lecture enlarges it
    const above = yOf(row) - (document.querySelector(".is-answered")?.getBoundingClientRect().bottom ?? 0);
    const below = yOf(row + 2) - innerHeight;
    if (above < 0 || below > 0) scrollBy({ top: above < 0 ? above - 8 : below, behavior: "instant" });
  }

  /** @param {number} zoom */
  setZoom(zoom) {
    if (!this.matrix) return;
    const { clientWidth, clientHeight, scrollLeft, scrollTop } = this.view;
    const ratio = Math.min(40, Math.max(this.matrix.cell ? 0.4 : 1, zoom)) / this.zoom;
    this.zoom *= ratio;
    this.resize();
    this.view.scrollLeft = (scrollLeft + clientWidth / 2) * ratio - clientWidth / 2;
    const isWhole = scrollLeft === 0 && this.matrix.rows > 2 && ratio > 1 && !this.matrix.cell && this.zoom / ratio === 1;
    const middle = isWhole ? (this.layout.height * this.matrix.rows) / 2 : (scrollTop + clientHeight / 2) * ratio; // keep the diagonal in view
    this.view.scrollTop = middle - clientHeight / 2;
  }

  /** Largest height in pixels; in a lecture, the room below the top of the map. */
  get max_height() {
    const { top, width } = this.element.getBoundingClientRect();
    if (isLecture()) return Math.max(200, ((innerHeight - top - scrollY) * this.element.offsetWidth) / (width || 1) - 50);
    return Math.max(260, Math.min(620, innerHeight * 0.62));
  }

  /** Size in pixels of margins and cells. */
  get layout() {
    const { rows, columns, row_labels, column_labels, plain_rows, plain_columns, cell } = /** @type {Matrix} */ (this.matrix);
    const left = 18 + 7 * longest(row_labels, plain_rows) + 8;
    const columnLength = longest(column_labels, plain_columns);
    const room = Math.max(60, this.element.clientWidth - left - 2);
    const share = cell ? room / columns / cell[0] : 1; // shrink the cells to show all columns, but not below LEAST_SHARE
    const whole = cell ? room / Math.max(1, Math.floor(room / (0.85 * cell[0]))) : 0; // no cell is cut where the columns scroll
    const wide = cell ? (share < LEAST_SHARE ? whole : cell[0] * Math.min(1.6, share)) * this.zoom : 0;
    const isUpright = wide >= 34;
    const top = isUpright ? 36 : 18 + 7 * columnLength + 8;
    const fit = Math.min(isLecture() ? 2 * MAX_CELL : MAX_CELL, room / columns, Math.max(15, (this.max_height - top) / rows));
    const least = isLecture() ? Math.min(LECTURE_CELL, room / columns) : 0; // numbers fit into the cells
    const tall = cell ? Math.min(1, (this.max_height - top) / rows / cell[1]) * this.zoom : 1;
    const [width, height] = cell ? [wide, cell[1] * Math.max(LEAST_SHARE, Math.min(1.5, tall))] : [Math.max(fit, least) * this.zoom, fit * this.zoom];
    return { left, top, width, height, is_upright: isUpright };
  }

  /** Set the sizes after a change of the matrix, the zoom or the window. */
  resize() {
    if (!this.matrix || !this.element.clientWidth) return;
    const { left, top, width, height } = this.layout;
    const [full, tall] = [left + width * this.matrix.columns + 1, top + height * this.matrix.rows + 1];
    const limit = this.max_height;
    const hasBar = full > this.element.clientWidth + 1;
    const viewHeight = Math.min(limit, Math.ceil(tall) + (hasBar ? 12 : 0));
    const barWidth = tall > viewHeight + 1 ? 16 : 0;
    const viewWidth = Math.min(this.element.clientWidth, Math.ceil(full) + barWidth);
    this.view.style.width = `${viewWidth}px`;
    this.view.style.height = `${viewHeight}px`;
    this.space.style.width = `${Math.floor(full)}px`;
    this.space.style.height = `${Math.floor(tall)}px`;
    this.draw();
  }

  /** Draw the visible part. */
  draw() {
    const matrix = this.matrix;
    if (!matrix || !this.element.clientWidth) return;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [this.view.clientWidth, this.view.clientHeight];
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d");
    if (!context) return;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const layout = this.layout;
    const [x0, y0] = [layout.left - this.view.scrollLeft, layout.top - this.view.scrollTop];
    const visible = {
      row: [Math.max(0, Math.floor(this.view.scrollTop / layout.height)), Math.min(matrix.rows, Math.ceil((height - y0) / layout.height))],
      column: [Math.max(0, Math.floor(this.view.scrollLeft / layout.width)), Math.min(matrix.columns, Math.ceil((width - x0) / layout.width))],
    };
    const drawing = { context, x0, y0, layout, visible };
    clipped(context, [layout.left, layout.top, width, height], () => {
      this.#drawCells(drawing);
      if (matrix.cell_text && layout.width >= 34) this.#drawTexts(drawing);
      this.#drawCrosshair(drawing);
    });
    clipped(context, [0, layout.top, layout.left, height], () => this.#drawRowLabels(drawing));
    clipped(context, [layout.left, 0, width, layout.top], () => this.#drawColumnLabels(drawing));
    this.#drawAxes(drawing);
  }

  /** @param {Drawing} drawing */
  #drawCells({ context, x0, y0, layout }) {
    const matrix = /** @type {Matrix} */ (this.matrix);
    const [width, height] = [matrix.columns * layout.width, matrix.rows * layout.height];
    context.imageSmoothingEnabled = false;
    context.drawImage(this.#image(width, height), x0, y0, width, height);
    context.strokeStyle = theme().line;
    context.lineWidth = 1;
    context.strokeRect(x0 - 0.5, y0 - 0.5, width + 1, height + 1);
  }

  /** Return an image with one pixel per cell, or per screen pixel if the cells are smaller: the largest value of its cells. @param {number} width @param {number} height */
  #image(width, height) {
    const matrix = /** @type {Matrix} */ (this.matrix);
    const isSmall = width < matrix.columns || height < matrix.rows;
    const ratio = isSmall ? devicePixelRatio || 1 : Infinity;
    const sizeOf = (/** @type {number} */ n, /** @type {number} */ size) => Math.max(1, Math.min(n, Math.round(size * ratio)));
    const [rows, columns] = [sizeOf(matrix.rows, height), sizeOf(matrix.columns, width)];
    if (this.pixels?.height !== rows || this.pixels.width !== columns) {
      const values = isSmall ? poolMax(shownValues(matrix), matrix.rows, matrix.columns, rows, columns) : shownValues(matrix);
      this.pixels = pixelImage(values, rows, columns, matrix);
    }
    return this.pixels;
  }

  /** @param {Drawing} drawing */
  #drawTexts({ context, x0, y0, layout, visible }) {
    const matrix = /** @type {Matrix} */ (this.matrix);
    context.font = `11px ${MONO}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const length = Math.floor((layout.width - 6) / 6.7);
    const [[top = 0, bottom = 0], [left = 0, right = 0]] = [visible.row, visible.column];
    for (let row = top; row < bottom; row++) {
      for (let column = left; column < right; column++) {
        const value = matrix.values[row * matrix.columns + column] ?? NaN;
        if (Number.isNaN(value)) continue;
        context.fillStyle = inkOn(colourOf(value, matrix.scale, matrix.range, matrix.dark));
        const text = shortened(matrix.cell_text?.(row, column) ?? "", length);
        context.fillText(text, x0 + (column + 0.5) * layout.width, y0 + (row + 0.5) * layout.height);
      }
    }
  }

  /** @param {Drawing} drawing */
  #drawCrosshair({ context, x0, y0, layout }) {
    const matrix = /** @type {Matrix} */ (this.matrix);
    const [full, tall] = [matrix.columns * layout.width, matrix.rows * layout.height];
    if (this.isAnswer && this.marked.row >= 0) {
      context.globalAlpha = 0.6;
      context.fillStyle = theme().paper;
      context.fillRect(x0, y0, full, this.marked.row * layout.height);
      context.fillRect(x0, y0 + (this.marked.row + 1) * layout.height, full, tall);
      context.globalAlpha = 1;
    }
    context.strokeStyle = theme().second;
    context.lineWidth = 1.5;
    const [w, t] = [Math.max(2, layout.width), Math.max(2, layout.height)];
    if (this.marked.row >= 0) context.strokeRect(x0, y0 + this.marked.row * layout.height, full, t);
    if (this.marked.column >= 0) context.strokeRect(x0 + this.marked.column * layout.width, y0, w, tall);
    if (this.cursor) {
      context.lineWidth = 2.5;
      context.strokeStyle = theme().ink;
      context.strokeRect(x0 + this.cursor[1] * layout.width, y0 + this.cursor[0] * layout.height, w, t);
    }
  }

  /** @param {Drawing} drawing */
  #drawRowLabels({ context, y0, layout, visible }) {
    const { row_labels: labels, plain_rows: isPlain } = /** @type {Matrix} */ (this.matrix);
    context.textAlign = "right";
    drawEach(context, visible.row, this.cursor?.[0] ?? this.marked.row, layout.height, (row) => {
      context.fillText(label(labels, row, 13, isPlain), layout.left - 5, y0 + (row + 0.5) * layout.height);
    });
  }

  /** @param {Drawing} drawing */
  #drawColumnLabels({ context, x0, layout, visible }) {
    const { column_labels: labels, plain_columns: isPlain } = /** @type {Matrix} */ (this.matrix);
    context.textAlign = layout.is_upright ? "center" : "left";
    drawEach(context, visible.column, this.cursor?.[1] ?? this.marked.column, layout.width, (column) => {
      context.save();
      context.translate(x0 + (column + 0.5) * layout.width, layout.top - 5);
      if (!layout.is_upright) context.rotate(-Math.PI / 2);
      context.fillText(label(labels, column, layout.is_upright ? Math.floor((layout.width - 2) / 7) : 13, isPlain), 0, layout.is_upright ? -5 : 0);
      context.restore();
    });
  }

  /** @param {Drawing} drawing */
  #drawAxes({ context, layout }) {
    const { row_axis: rowAxis, column_axis: columnAxis } = /** @type {Matrix} */ (this.matrix);
    context.fillStyle = theme().faint;
    context.font = `10.5px ${FONT}`;
    context.textAlign = "left";
    context.textBaseline = "top";
    context.fillText(`${columnAxis} →`, layout.left, 1);
    context.translate(3, layout.top);
    context.rotate(-Math.PI / 2);
    context.textAlign = "right";
    context.fillText(`← ${rowAxis}`, 0, 0);
  }

  #drawLegend() {
    const { scale, dark, unit = "", range } = /** @type {Matrix} */ (this.matrix);
    const [low, high] = fullRange({ scale, range });
    const stops = Array.from({ length: 9 }, (_, i) => css(colourOf(2 * i - 8, scale, [-8, 8], dark)));
    fill(this.legend, ...legendParts(stops, fixed(low, 2), `${fixed(high, 2)} ${unit}`.trim()));
  }

  /** @param {MouseEvent} event @returns {[number, number] | null} */
  #cellAt(event) {
    if (!this.matrix) return null;
    const box = this.view.getBoundingClientRect();
    const layout = this.layout;
    const scale = this.view.offsetWidth / box.width; // below 1 if the page is enlarged
    const [x, y] = [(event.clientX - box.left) * scale - layout.left, (event.clientY - box.top) * scale - layout.top];
    if (x < -layout.left || y < -layout.top || (x < 0 && y < 0)) return null;
    const column = Math.min(this.matrix.columns - 1, Math.floor((Math.max(0, x) + this.view.scrollLeft) / layout.width));
    const row = Math.min(this.matrix.rows - 1, Math.floor((Math.max(0, y) + this.view.scrollTop) / layout.height));
    return x > this.matrix.columns * layout.width || y > this.matrix.rows * layout.height ? null : [row, column];
  }

  /** @param {MouseEvent} event @param {boolean} isClick */
  #pointed(event, isClick) {
    const cell = this.#cellAt(event);
    if (!cell) return this.#leave();
    this.#moveTo(cell);
    if (isClick) this.options.onselect?.(...cell);
    tooltip(/** @type {Matrix} */ (this.matrix).describe(...cell), event.clientX, event.clientY);
  }

  /** @param {[number, number]} cell */
  #moveTo(cell) {
    if (this.cursor && this.cursor[0] === cell[0] && this.cursor[1] === cell[1]) return;
    this.cursor = cell;
    this.options.onhover?.(...cell);
    this.#describe();
    this.draw();
  }

  #leave() {
    tooltip("");
    if (!this.cursor) return;
    this.cursor = null;
    this.options.onleave?.();
    this.draw();
  }

  #describe() {
    const { matrix, cursor } = this;
    if (!matrix) return;
    this.detail.textContent = cursor ? matrix.describe(...cursor) : `${matrix.rows} × ${matrix.columns}${this.view.scrollWidth > this.view.clientWidth + 1 ? "; scroll sideways for more" : ""}`;
    keepHeight(this.detail);
    this.view.setAttribute("aria-label", `${this.options.label}. ${this.detail.textContent}. Arrow keys move among the cells.`);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const matrix = this.matrix;
    if (!matrix || event.ctrlKey || event.metaKey || event.altKey) return;
    const zooms = /** @type {Record<string, number>} */ ({ "+": this.zoom * 1.5, "=": this.zoom * 1.5, "-": this.zoom / 1.5, 0: 1 });
    if (zooms[event.key]) {
      event.preventDefault();
      this.setZoom(/** @type {number} */ (zooms[event.key]));
      return;
    }
    const [row, column] = this.cursor ?? [0, 0];
    const step = event.shiftKey ? 10 : 1;
    const moves = /** @type {Record<string, [number, number]>} */ ({
      ArrowRight: [row, column + step], ArrowLeft: [row, column - step], ArrowDown: [row + step, column],
      ArrowUp: [row - step, column], Home: [row, 0], End: [row, matrix.columns - 1],
    });
    const next = moves[event.key];
    if (next) {
      event.preventDefault();
      const cell = /** @type {[number, number]} */ ([clamp(next[0], matrix.rows), clamp(next[1], matrix.columns)]);
      this.#moveTo(this.cursor ? cell : [0, 0]);
      this.#scrollTo(...cell);
    } else if ((event.key === "Enter" || event.key === " ") && this.cursor) {
      event.preventDefault();
      this.options.onselect?.(...this.cursor);
    }
  }

  /** Scroll the map until a row and a column are visible; −1 for none. @param {number} row @param {number} column */
  #scrollTo(row, column) {
    const { left, top, width, height } = this.layout;
    const scrolled = (/** @type {number} */ at, /** @type {number} */ i, /** @type {number} */ size, /** @type {number} */ room) =>
      (i < 0 ? at : Math.max(Math.min(at, i * size), (i + 1) * size - room));
    this.view.scrollLeft = scrolled(this.view.scrollLeft, column, width, this.view.clientWidth - left);
    this.view.scrollTop = scrolled(this.view.scrollTop, row, height, this.view.clientHeight - top);
  }

  /** @param {string} title @returns {Scene | null} */
  scene(title) {
    return this.matrix ? heatScene(this.matrix, title) : null;
  }

  /** @returns {Table} */
  table() {
    return this.matrix ? heatTable(this.matrix) : { header: [], rows: [] };
  }
}

/** Draw a part that ends at the sides of a box: x, y, width, height. @param {CanvasRenderingContext2D} context @param {Box} box @param {() => void} draw */
function clipped(context, box, draw) {
  context.save();
  context.beginPath();
  context.rect(...box);
  context.clip();
  draw();
  context.restore();
}

/** Return the length of the longest label, at most 13 characters; that of a token has its number. @param {string[]} labels @param {boolean} [isPlain] */
function longest(labels, isPlain) {
  return Math.min(13, labels.reduce((most, text) => Math.max(most, [...text].length), 1) + (isPlain ? 0 : 1 + String(labels.length - 1).length));
}

/**
 * Draw as many labels of the visible rows or columns as fit. Draw the marked label in the second colour, and leave out
 * labels that would overlap it.
 * @param {CanvasRenderingContext2D} context
 * @param {number[]} visible first one, and the one after the last
 * @param {number} marked -1 without one
 * @param {number} size of a cell in pixels
 * @param {(index: number) => void} draw
 */
function drawEach(context, [first = 0, end = 0], marked, size, draw) {
  const { ink, second } = theme();
  const every = Math.max(1, Math.ceil(MIN_LABEL / size));
  context.font = `${Math.min(12, Math.max(9, size - 2))}px ${MONO}`;
  context.textBaseline = "middle";
  context.fillStyle = ink;
  for (let i = first; i < end; i++) {
    if (i !== marked && i % every === 0 && (marked < 0 || Math.abs(i - marked) * size >= MIN_LABEL)) draw(i);
  }
  context.fillStyle = second;
  if (marked >= 0) draw(marked);
}

/** A label of at most `length` characters. That of a token has its number, if it fits, and visible spaces. @param {string[]} labels @param {number} i @param {number} length @param {boolean} [isPlain] */
function label(labels, i, length, isPlain) {
  const text = labels[i] ?? "";
  const number = `${i} `;
  if (!isPlain) return length < 7 ? shortened(text, length) : number + shortened(text, length - number.length);
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}

/** @param {number} index @param {number} length */
const clamp = (index, length) => Math.max(0, Math.min(length - 1, index));

/**
 * Reduce a matrix to rows × columns pixels. Each pixel has the value of the largest magnitude among its cells. NaN
 * cells are ignored; a pixel is NaN if all of its cells are.
 * @param {ArrayLike<number>} values
 * @param {number} height
 * @param {number} width
 * @param {number} rows
 * @param {number} columns
 */
export function poolMax(values, height, width, rows, columns) {
  const pooled = new Float32Array(rows * columns).fill(NaN);
  for (let i = 0; i < height; i++) {
    const row = Math.floor((i * rows) / height);
    for (let j = 0; j < width; j++) {
      const at = row * columns + Math.floor((j * columns) / width);
      const value = /** @type {number} */ (values[i * width + j]);
      const former = /** @type {number} */ (pooled[at]);
      if (Number.isNaN(former) || Math.abs(value) > Math.abs(former)) pooled[at] = value;
    }
  }
  return pooled;
}

/**
 * Return an image with one pixel per number.
 * @param {ArrayLike<number>} values
 * @param {number} rows
 * @param {number} columns
 * @param {{scale: "sequential" | "diverging", range: [number, number], dark: boolean, masked?: unknown}} look
 */
export function pixelImage(values, rows, columns, { scale, range, dark, masked }) {
  const table = colourTable(scale, dark);
  return pixels(columns, rows, (cell) => {
    const value = /** @type {number} */ (values[cell]);
    if (Number.isNaN(value)) return masked ? maskedColour(dark) : null;
    return table[Math.round(255 * scalePosition(value, scale, range))];
  });
}

/** Return the values, with NaN in place of masked cells. @param {Matrix} matrix @returns {ArrayLike<number>} */
function shownValues({ values, columns, masked }) {
  return masked ? Float32Array.from(values, (value, i) => (masked(Math.floor(i / columns), i % columns) ? NaN : value)) : values;
}

/** Return the scene of a whole matrix: rectangles, or an image if it has more than 10,000 cells. @param {Matrix} matrix @param {string} title */
export function heatScene(matrix, title) {
  const { ink, faint, paper } = theme();
  const { rows, columns, cell } = matrix;
  const isLarge = rows * columns > 10_000;
  const [width, height] = cell ?? (isLarge ? [Math.max(1, 1200 / columns), Math.max(1, 1200 / columns)] : [18, 18]);
  const left = 20 + 7 * longest(matrix.row_labels, matrix.plain_rows);
  const top = 26 + (cell ? 16 : 20 + 7 * longest(matrix.column_labels, matrix.plain_columns));
  /** @type {Shape[]} */
  const shapes = [{ type: "text", x: 6, y: 16, text: title, size: 12, fill: ink, bold: true }];
  if (isLarge) shapes.push({ type: "image", x: left, y: top, width: columns * width, height: rows * height, image: pixelImage(shownValues(matrix), rows, columns, matrix) });
  else {
    for (let i = 0; i < rows * columns; i++) {
      const value = matrix.values[i] ?? NaN;
      if (Number.isNaN(value)) continue;
      const [row, column] = [Math.floor(i / columns), i % columns];
      const colour = matrix.masked?.(row, column) ? maskedColour(matrix.dark) : colourOf(value, matrix.scale, matrix.range, matrix.dark);
      const [x, y] = [left + column * width, top + row * height];
      shapes.push({ type: "rect", x, y, width, height, fill: css(colour) });
      if (cell && matrix.cell_text) {
        const text = shortened(matrix.cell_text(row, column), Math.floor((width - 4) / 6.7));
        shapes.push({ type: "text", x: x + width / 2, y: y + height / 2 + 4, text, size: 11, fill: inkOn(colour), anchor: "middle", mono: true });
      }
    }
  }
  const size = Math.min(12, Math.max(6, height - 3));
  for (let row = 0; row < rows; row += Math.max(1, Math.ceil(8 / height))) {
    shapes.push({ type: "text", x: left - 5, y: top + (row + 0.5) * height + size / 3, text: label(matrix.row_labels, row, 13, matrix.plain_rows), size, fill: ink, anchor: "end", mono: true });
  }
  for (let column = 0; column < columns; column += Math.max(1, Math.ceil(8 / width))) {
    const text = label(matrix.column_labels, column, cell ? Math.floor(width / 7) : 13, matrix.plain_columns);
    const x = left + (column + 0.5) * width;
    shapes.push(cell ? { type: "text", x, y: top - 6, text, size: 11, fill: ink, anchor: "middle", mono: true }
      : { type: "text", x: x + size / 3, y: top - 5, text, size: Math.min(12, Math.max(6, width - 3)), fill: ink, rotate: -90, mono: true });
  }
  const [low, high] = fullRange(matrix);
  const legend = `colours from ${fixed(low, 2)} to ${fixed(high, 2)}${matrix.unit ? ` ${matrix.unit}` : ""}`;
  shapes.push({ type: "text", x: 6, y: top + rows * height + 16, text: `rows: ${matrix.row_axis}; columns: ${matrix.column_axis}; ${legend}`, size: 11, fill: faint });
  return { width: Math.max(300, left + columns * width + 12), height: top + rows * height + 26, background: paper, shapes };
}

/** Return the numbers of a matrix with its labels. @param {Matrix} matrix @returns {Table} */
export function heatTable({ rows, columns, values, row_labels, column_labels, row_axis, column_axis }) {
  const number = (value = NaN) => (Number.isNaN(value) ? null : Number(value.toPrecision(5)));
  const cells = (/** @type {number} */ row) => Array.from({ length: columns }, (_, column) => number(values[row * columns + column]));
  const lines = Array.from({ length: rows }, (_, row) => [row_labels[row] ?? String(row), ...cells(row)]);
  return { header: [`${row_axis} \\ ${column_axis}`, ...column_labels.slice(0, columns)], rows: lines };
}
