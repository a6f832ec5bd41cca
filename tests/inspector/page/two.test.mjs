// Two pages side by side: which choices a page follows, and the address of both.
import assert from "node:assert/strict";
import { test } from "node:test";

const PAGE = "../../../src/glassformer/apps/inspector/page";
const { addressOf, following, viewsOf } = await import(`${PAGE}/two.js`);
const { decodeHash } = await import(`${PAGE}/state.js`);

const FIRST = decodeHash("text=a b&panel=lens&layer=1&pos=3&checkpoint=one@2");
const SECOND = decodeHash("text=c d&panel=attention&pos=1&checkpoint=two@5&folder=x");

test("a page follows the panel and the layer, and keeps its model and its text", () => {
  const { panel, layer, pos, text, checkpoint, folder } = following(SECOND, FIRST, false);
  assert.deepEqual([panel, layer, pos, text, checkpoint, folder], ["lens", 1, 1, "c d", "two@5", "x"]);
});

test("with the same text, a page also follows the text and its position", () => {
  const { text, pos, checkpoint } = following(SECOND, FIRST, true);
  assert.deepEqual([text, pos, checkpoint], ["a b", 3, "two@5"]);
});

test("an address restores both views, and the first one twice if it has no second", () => {
  assert.deepEqual(viewsOf(addressOf(FIRST, SECOND)), [FIRST, SECOND]);
  assert.deepEqual(viewsOf(`#a=${encodeURIComponent("text=a%20b&panel=lens")}`).map(({ text, panel }) => [text, panel]), [["a b", "lens"], ["a b", "lens"]]);
});
