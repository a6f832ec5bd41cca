/**
 * Export a picture as SVG, PNG, CSV or JSON.
 *
 * @import { Picture, Table } from "./types.js"
 */

import { paintScene, sceneElement } from "./scene.js";

/**
 * Return a table as CSV (RFC 4180): fields with a comma, a quote or a line end are quoted.
 * @param {Table} table
 * @returns {string}
 */
export function toCsv({ header, rows }) {
  return [header, ...rows].map((row) => row.map(csvField).join(",")).join("\r\n") + "\r\n";
}

/** @param {string | number | null} value */
function csvField(value) {
  const text = value === null ? "" : String(value);
  return /[",\r\n]/.test(text) || text !== text.trim() ? `"${text.replaceAll('"', '""')}"` : text;
}

/**
 * Save a file in the browser's downloads.
 * @param {string} name
 * @param {Blob} blob
 */
export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * Save a picture in one format.
 * @param {Picture} picture
 * @param {string} format "svg", "png", "csv" or "json"
 */
export async function savePicture(picture, format) {
  const name = `${picture.name}.${format}`;
  if (format === "csv") download(name, new Blob([toCsv(picture.table())], { type: "text/csv" }));
  if (format === "json") {
    download(name, new Blob([JSON.stringify(picture.data(), null, 1)], { type: "application/json" }));
  }
  const scene = format === "svg" || format === "png" ? picture.scene() : null;
  if (!scene) return;
  if (format === "svg") {
    const text = new XMLSerializer().serializeToString(sceneElement(scene));
    download(name, new Blob([text], { type: "image/svg+xml" }));
  } else {
    const blob = await scenePng(scene);
    if (blob) download(name, blob);
  }
}

/**
 * Return a scene as PNG, at twice its size unless it is very large.
 * @param {import("./scene.js").Scene} scene
 * @returns {Promise<Blob | null>}
 */
function scenePng(scene) {
  const scale = Math.min(2, 8192 / Math.max(scene.width, scene.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(scene.width * scale);
  canvas.height = Math.ceil(scene.height * scale);
  const context = canvas.getContext("2d");
  if (!context) return Promise.resolve(null);
  context.scale(scale, scale);
  paintScene(context, scene);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
