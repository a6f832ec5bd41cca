// Encode the texts of FILE.json, {vocabularies, texts}, with each vocabulary; write ids, decoded texts and sentences about unknown parts.
import { readFileSync, writeFileSync } from "node:fs";

import { Tokenizer } from "../../../src/glassformer/apps/inspector/network/tokenizer.js";

const file = process.argv[2];
const { vocabularies, texts } = JSON.parse(readFileSync(file, "utf8"));
const found = vocabularies.map((vocabulary) => {
  const tokenizer = new Tokenizer(vocabulary);
  const ofTexts = texts.map((text) => {
    const ids = tokenizer.encode(text);
    return { ids, text: tokenizer.decode(ids), unknown: tokenizer.unknownIn(text) };
  });
  return { texts: ofTexts, tokens: vocabulary.tokens.map((_, id) => tokenizer.shown(id)), pieces: tokenizer.pieces.map((piece) => [...piece]) };
});
writeFileSync(file.replace(".json", ".out.json"), JSON.stringify(found));
