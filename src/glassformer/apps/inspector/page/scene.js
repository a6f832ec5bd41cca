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
 * @typedef {{fill?: string, stroke?: string, opacity?: number, title?: string, place?: Place, across?: Place}} Look of all shapes
 * @typedef {{type: "rect", x: number, y: number, width: number, height: number, rx?: number}} Rect
 * @typedef {{type: "path", d: string, width?: number, dash?: string}} Path
 * @typedef {{
 *   type: "text", x: number, y: number, text: string, size?: number, anchor?: "start" | "middle" | "end", mono?: boolean, bold?: boolean, rotate?: number,
 * }} Text
 * @typedef {{type: "circle", x: number, y: number, r: number}} Circle
 * @typedef {{type: "image", x: number, y: number, width: number, height: number, image: HTMLCanvasElement}} Image
 * @typedef {Look & (Rect | Path | Text | Circle | Image)} Shape
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

/** Return a copy of the left part of a picture: it stays in view while the picture scrolls sideways. @param {SVGSVGElement} picture @param {number} width in units of the picture */
export function leftPart(picture, width) {
  const part = /** @type {SVGSVGElement} */ (picture.cloneNode(true));
  part.setAttribute("viewBox", `0 0 ${width} ${picture.viewBox.baseVal.height}`);
  part.classList.add("left-part");
  Object.assign(part.style, { minWidth: 0, width: `${(100 * width) / picture.viewBox.baseVal.width}%` });
  return part;
}

/** @param {Shape} shape @returns {SVGElement} */
function shapeElement(shape) {
  const { type, title, place, across, fill = type === "text" ? undefined : "none", stroke, opacity } = shape;
  return svg(type, {
    ...geometryOf(shape), fill, stroke, opacity,
    "data-side": place?.side, "data-index": place?.index, "data-across-side": across?.side, "data-across": across?.index,
  }, type === "text" ? shape.text : null, title ? svg("title", {}, title) : null);
}

/** Return the attributes of one type of shapes. @param {Shape} shape @returns {import("./dom.js").Attributes} */
function geometryOf(shape) {
  switch (shape.type) {
    case "rect":
      return { x: round(shape.x), y: round(shape.y), width: round(shape.width), height: round(shape.height), rx: shape.rx };
    case "path":
      return { d: shape.d, "stroke-width": shape.width, "stroke-dasharray": shape.dash };
    case "circle":
      return { cx: round(shape.x), cy: round(shape.y), r: shape.r };
    case "image": {
      const { x, y, width, height, image } = shape;
      return { x, y, width, height, href: image.toDataURL(), preserveAspectRatio: "none", "image-rendering": "pixelated" };
    }
    case "text": {
      const { x, y, size, anchor, mono, bold, rotate } = shape;
      return {
        x: round(x), y: round(y), "font-size": size ?? 12, "text-anchor": anchor, "font-weight": bold ? 600 : undefined, "font-family": mono ? MONO : FONT,
        transform: rotate ? `rotate(${rotate} ${round(x)} ${round(y)})` : undefined, "xml:space": "preserve",
      };
    }
  }
}

/** @param {number} x */
const round = (x) => Math.round(x * 100) / 100;

/** Draw a scene on a canvas. @param {OffscreenCanvasRenderingContext2D} context @param {Scene} scene */
export function paintScene(context, scene) {
  if (scene.background) {
    context.fillStyle = scene.background;
    context.fillRect(0, 0, scene.width, scene.height);
  }
  for (const shape of scene.shapes) {
    context.save();
    context.globalAlpha = shape.opacity ?? 1;
    paintShape(context, shape);
    context.restore();
  }
}

/** @param {OffscreenCanvasRenderingContext2D} context @param {Shape} shape */
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
