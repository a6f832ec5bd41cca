// Encode the texts of FILE.json, {vocabularies, texts}, with each vocabulary; write ids, decoded texts and sentences about unknown parts.
// With {rules, conversations}, also write the ids of each conversation; the rules of a vocabulary are those of its place.
import { readFileSync, writeFileSync } from "node:fs";

import { Reading } from "../../../src/glassformer/apps/inspector/network/reading.js";
import { Tokenizer } from "../../../src/glassformer/apps/inspector/network/tokenizer.js";

const file = process.argv[2];
const { vocabularies, texts, rules = [], conversations = [] } = JSON.parse(readFileSync(file, "utf8"));
const found = vocabularies.map((vocabulary, i) => {
  const tokenizer = new Tokenizer(vocabulary);
  const ofTexts = texts.map((text) => {
    const ids = tokenizer.encode(text);
    return { ids, text: tokenizer.decode(ids), unknown: tokenizer.unknownIn(text) };
  });
  const reading = new Reading(rules[i] ?? {}, { target: vocabulary, source: null });
  const ofConversations = conversations.map((messages) => reading.messageIds(messages));
  return { conversations: ofConversations, texts: ofTexts, tokens: vocabulary.tokens.map((_, id) => tokenizer.shown(id)), pieces: tokenizer.pieces.map((piece) => [...piece]) };
});
writeFileSync(file.replace(".json", ".out.json"), JSON.stringify(found));
