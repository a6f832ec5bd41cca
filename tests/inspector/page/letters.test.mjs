// Letters over the tokens that carry them, and the order of writing.
import assert from "node:assert/strict";
import { test } from "node:test";

const PAGE = "../../../src/glassformer/apps/inspector/page";
const { labelAfter, labelsOf, lettersOf, partText } = await import(`${PAGE}/letters.js`);
const { directionOf, directionOfText, runsOf, visualOrder } = await import(`${PAGE}/letters.js`);

/** The readable tokens of a text that is cut into single bytes. */
const bytesOf = (text) => [...new TextEncoder().encode(text)].map((byte) => (byte < 0x80 ? String.fromCharCode(byte) : `<0x${byte.toString(16).toUpperCase()}>`));
const spans = (texts) => lettersOf(texts).map(({ text, n }) => [text, n]);

test("a letter of Hebrew, Arabic, Chinese, and an emoji of several code points spans its bytes", () => {
  assert.deepEqual(spans(bytesOf("שלום")), [["ש", 2], ["ל", 2], ["ו", 2], ["ם", 2]]);
  assert.deepEqual(spans(bytesOf("سلام")), [["س", 2], ["ل", 2], ["ا", 2], ["م", 2]]);
  assert.deepEqual(spans(bytesOf("a日b")), [["a", 1], ["日", 3], ["b", 1]]);
  const family = "👨‍👩‍👧";
  assert.deepEqual(spans(bytesOf(`${family}!`)), [[family, 18], ["!", 1]]);
  assert.deepEqual(spans(bytesOf("🇩🇪")), [["🇩🇪", 8]]);
  assert.deepEqual(spans(["e", "\u0301", "x"]), [["e\u0301", 2], ["x", 1]], "an accent belongs to its base");
  assert.deepEqual(spans(["a<0xE6>", "<0x97><0xA5>b"]), [["a日b", 2]], "tokens may hold more than the part of a letter");
});

test("bytes that are no text stay as they are", () => {
  assert.deepEqual(spans(["<0xD7>", "a"]), [["<0xD7>", 1], ["a", 1]], "the second byte of the letter is missing");
  assert.deepEqual(spans(["<0x97>", "<0xE6>", "<0x97>", "<0xA5>"]), [["<0x97>", 1], ["日", 3]], "a letter after a stray byte is whole");
  assert.deepEqual(spans(["<0xE6>", "<0x97>"]), [["<0xE6>", 1], ["<0x97>", 1]], "the text ends inside a letter");
  assert.deepEqual(spans(["\r", "\n", "[BOS]"]), [["\r", 1], ["\n", 1], ["[BOS]", 1]]);
});

test("a token with a part of a letter is named by the letter", () => {
  assert.deepEqual(labelsOf(["a", "<0xD7>", "<0xA9>", "<0xFF>"].map((text) => ({ text }))), ["a", "ש·1/2", "ש·2/2", "<0xFF>"]);
  assert.deepEqual(labelsOf(["e", "\u0301"].map((text) => ({ text }))), ["e", "\u0301"]);
  assert.equal(partText("<0xD7>"), "D7");
  assert.equal(partText("b<0xE6><0x97>"), "bE697");
});

test("a predicted token that completes a letter is named by it", () => {
  const before = bytesOf("abש日").slice(0, -1).map((text) => ({ text }));
  assert.equal(labelAfter(before, "<0xA5>"), "日·3/3");
  assert.equal(labelAfter(before, "<0xA6>"), "\u65e6·3/3");
  assert.equal(labelAfter(before, "x"), "x");
  assert.equal(labelAfter(before.slice(0, 2), "<0xA5>"), "<0xA5>", "a byte that completes nothing");
  assert.equal(labelAfter([{ text: "<0xD7>" }], "<0xAB>"), "<0xAB>", "no letter has these bytes");
  assert.equal(labelAfter([], "<0xD7>"), "<0xD7>", "the first byte of many letters");
});

test("tokens are seen in the order of writing", () => {
  assert.deepEqual([directionOf("שלום"), directionOf(" سلام"), directionOf("日"), directionOf(" 12"), directionOf("!")], ["rtl", "rtl", "ltr", "ltr", null]);
  assert.equal(directionOfText("12 שלום abc"), "rtl", "the first letter decides, not a number");
  assert.deepEqual(visualOrder(["abc", " ", "def"]), [0, 1, 2]);
  assert.deepEqual(visualOrder(["של", "ום", " ", "עולם"]), [3, 2, 1, 0]);
  assert.deepEqual(visualOrder(["see ", "של", " ", "ום", " now"]), [0, 3, 2, 1, 4], "Hebrew inside English");
  assert.deepEqual(visualOrder(["של", "12", "34", "ום"]), [3, 1, 2, 0], "a number of two tokens inside Hebrew");
  assert.deepEqual(runsOf(["rtl", null, "ltr"], "rtl"), [{ direction: "rtl", from: 0, to: 2 }, { direction: "ltr", from: 2, to: 3 }]);
});
