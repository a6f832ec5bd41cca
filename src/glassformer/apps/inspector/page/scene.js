/**
 * Scenes: pictures as lists of shapes, drawn as SVG on the page and in files, or on a canvas for PNG.
 *
 * A shape may belong to a token (`place`); the page then highlights it together with the token.
 *
 * @import { Rgb } from "./colours.js"
 * @import { Place } from "./types.js"
 */

import { h, svg } from "./dom.js";
import { FONT, MONO } from "./theme.js";

/**
 * @typedef {{
 *   type: "rect", x: number, y: number, width: number, height: number, fill?: string, stroke?: string, rx?: number,
 *   opacity?: number, title?: string, place?: Place,
 * }} Rect
 * @typedef {{
 *   type: "path", d: string, stroke?: string, fill?: string, width?: number, opacity?: number, dash?: string,
 *   title?: string, place?: Place, across?: Place,
 * }} Path
 * @typedef {{
 *   type: "text", x: number, y: number, text: string, size?: number, fill?: string, anchor?: "start" | "middle" | "end",
 *   mono?: boolean, bold?: boolean, rotate?: number, title?: string, place?: Place,
 * }} Text
 * @typedef {{type: "circle", x: number, y: number, r: number, fill?: string, stroke?: string, title?: string}} Circle
 * @typedef {{type: "image", x: number, y: number, width: number, height: number, image: HTMLCanvasElement, opacity?: number}} Image
 * @typedef {Rect | Path | Text | Circle | Image} Shape
 * @typedef {{width: number, height: number, background?: string, shapes: Shape[]}} Scene
 */

/**
 * Return a canvas with one pixel per cell, row by row.
 * @param {number} columns
 * @param {number} rows
 * @param {(cell: number) => Rgb | null | undefined} colour without a colour, the pixel is transparent
 */
export function pixels(columns, rows, colour) {
  const canvas = h("canvas", { width: columns, height: rows });
  const image = new ImageData(Math.max(1, columns), Math.max(1, rows));
  const { data } = image;
  for (let i = 0; i < rows * columns; i++) {
    const found = colour(i);
    if (!found) continue;
    [data[4 * i], data[4 * i + 1], data[4 * i + 2]] = found;
    data[4 * i + 3] = 255;
  }
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

/**
 * Return the SVG element of a scene.
 * @param {Scene} scene
 * @returns {SVGSVGElement}
 */
export function sceneElement(scene) {
  const { width, height } = scene;
  const root = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` });
  if (scene.background) root.append(svg("rect", { width, height, fill: scene.background }));
  for (const shape of scene.shapes) root.append(shapeElement(shape));
  return root;
}

/** @param {Shape} shape @returns {SVGElement} */
function shapeElement(shape) {
  const element = plainElement(shape);
  if ("title" in shape && shape.title) element.append(svg("title", {}, shape.title));
  if ("place" in shape && shape.place) {
    element.setAttribute("data-side", shape.place.side);
    element.setAttribute("data-index", String(shape.place.index));
  }
  if ("across" in shape && shape.across) {
    element.setAttribute("data-across-side", shape.across.side);
    element.setAttribute("data-across", String(shape.across.index));
  }
  return element;
}

/** @param {Shape} shape @returns {SVGElement} */
function plainElement(shape) {
  switch (shape.type) {
    case "rect": {
      const { x, y, width, height, rx, opacity, fill, stroke } = shape;
      return svg("rect", { x: round(x), y: round(y), width: round(width), height: round(height), rx, opacity, fill: fill ?? "none", stroke });
    }
    case "path": {
      const { d, stroke, fill, width, opacity, dash } = shape;
      return svg("path", { d, stroke, fill: fill ?? "none", "stroke-width": width, opacity, "stroke-dasharray": dash });
    }
    case "circle":
      return svg("circle", { cx: round(shape.x), cy: round(shape.y), r: shape.r, fill: shape.fill ?? "none", stroke: shape.stroke });
    case "image":
      return svg("image", {
        x: shape.x, y: shape.y, width: shape.width, height: shape.height, href: shape.image.toDataURL(),
        preserveAspectRatio: "none", "image-rendering": "pixelated", opacity: shape.opacity,
      });
    case "text": {
      const { x, y, size, fill, anchor, mono, bold, rotate } = shape;
      return svg("text", {
        x: round(x), y: round(y), fill, "font-size": size ?? 12, "text-anchor": anchor, "font-weight": bold ? 600 : undefined,
        "font-family": mono ? MONO : FONT, transform: rotate ? `rotate(${rotate} ${round(x)} ${round(y)})` : undefined,
        "xml:space": "preserve",
      }, shape.text);
    }
  }
}

/** @param {number} x */
const round = (x) => Math.round(x * 100) / 100;

/**
 * Draw a scene on a canvas.
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 */
export function paintScene(context, scene) {
  if (scene.background) {
    context.fillStyle = scene.background;
    context.fillRect(0, 0, scene.width, scene.height);
  }
  for (const shape of scene.shapes) {
    context.save();
    if ("opacity" in shape && shape.opacity !== undefined) context.globalAlpha = shape.opacity;
    paintShape(context, shape);
    context.restore();
  }
}

/** @param {CanvasRenderingContext2D} context @param {Shape} shape */
function paintShape(context, shape) {
  if (shape.type === "image") {
    context.imageSmoothingEnabled = false;
    context.drawImage(shape.image, shape.x, shape.y, shape.width, shape.height);
    return;
  }
  if (shape.type === "text") {
    context.font = `${shape.bold ? "600 " : ""}${shape.size ?? 12}px ${shape.mono ? MONO : FONT}`;
    context.fillStyle = shape.fill ?? "#000";
    context.textAlign = shape.anchor === "middle" ? "center" : shape.anchor ?? "start";
    context.translate(shape.x, shape.y);
    if (shape.rotate) context.rotate((shape.rotate * Math.PI) / 180);
    context.fillText(shape.text, 0, 0);
    return;
  }
  const path = outline(shape);
  if (shape.fill && shape.fill !== "none") {
    context.fillStyle = shape.fill;
    context.fill(path);
  }
  if (shape.stroke) {
    context.strokeStyle = shape.stroke;
    context.lineWidth = "d" in shape ? shape.width ?? 1 : 1;
    if ("d" in shape && shape.dash) context.setLineDash(shape.dash.split(" ").map(Number));
    context.stroke(path);
  }
}

/** @param {Rect | Path | Circle} shape */
function outline(shape) {
  if (shape.type === "path") return new Path2D(shape.d);
  const path = new Path2D();
  if (shape.type === "circle") path.arc(shape.x, shape.y, shape.r, 0, 2 * Math.PI);
  else path.roundRect(shape.x, shape.y, shape.width, shape.height, shape.rx ?? 0);
  return path;
}
