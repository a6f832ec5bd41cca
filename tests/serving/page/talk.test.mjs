// Pure functions of the page to talk: events of a stream, versions of messages, tokens of an answer.
import assert from "node:assert/strict";
import { test } from "node:test";

const PAGE = "../../../src/glassformer/apps/serving/page";
const { Answer, chatPart, isWritable, speed, textPart } = await import(`${PAGE}/answer.js`);
const { Conversation } = await import(`${PAGE}/conversation.js`);
const { EventReader } = await import(`${PAGE}/requests.js`);
const { lookAddress } = await import(`${PAGE}/writer.js`);

const token = (text, logProb = -1, top = []) => ({ text, id: text.length, log_prob: logProb, top });
const part = (text, tokens, finish = null) => ({ text, tokens, finish, left_out: 0 });

test("events are the same for every split of the stream", () => {
  const stream = 'data: {"a": "x\\n"}\n\n: a comment\n\ndata: one\ndata: two\n\ndata: [DONE]\n\n';
  const whole = new EventReader().push(stream);
  assert.deepEqual(whole, ['{"a": "x\\n"}', "one\ntwo", "[DONE]"]);
  for (let size = 1; size < stream.length; size++) {
    const reader = new EventReader();
    const found = [];
    for (let i = 0; i < stream.length; i += size) found.push(...reader.push(stream.slice(i, i + size)));
    assert.deepEqual(found, whole, size);
  }
});

test("an event that has not ended is not read", () => {
  const reader = new EventReader();
  assert.deepEqual(reader.push("data: half\n"), []);
  assert.deepEqual(reader.push("\ndata: x"), ["half"]);
});

test("an edit begins a branch, and all branches are kept", () => {
  const conversation = new Conversation();
  const texts = () => conversation.shown().map((message) => message.text);
  const first = conversation.add(conversation.last, "user", "a");
  const answer = conversation.add(first, "assistant", "b");
  conversation.add(answer, "user", "c");
  assert.deepEqual(texts(), ["a", "b", "c"]);
  const edited = conversation.add(first.parent, "user", "A");
  conversation.add(edited, "assistant", "B");
  assert.deepEqual(texts(), ["A", "B"]);
  assert.deepEqual(conversation.version(edited), { number: 2, of: 2 });
  conversation.turn(edited, -1);
  assert.deepEqual(texts(), ["a", "b", "c"]);
  conversation.turn(first, -1);
  assert.deepEqual(texts(), ["a", "b", "c"], "there is no version before the first");
  conversation.add(first, "assistant", "again");
  assert.deepEqual(texts(), ["a", "again"]);
  assert.deepEqual(conversation.shown(answer).map((message) => message.text), ["a", "again"]);
  conversation.turn(first, 1);
  assert.deepEqual(texts(), ["A", "B"]);
});

test("the messages before a version are those of its branch", () => {
  const conversation = new Conversation();
  const first = conversation.add(conversation.root, "user", "a");
  const second = conversation.add(first, "assistant", "b");
  assert.deepEqual(conversation.shown(second), [first]);
  assert.deepEqual(conversation.shown(first), []);
});

test("parts of both endpoints are read alike", () => {
  const tops = [{ token: "Hi", logprob: -0.5, id: 3 }, { token: "Ho", logprob: -1.5, id: 4 }];
  const chat = chatPart({ choices: [{ delta: { content: "Hi" }, finish_reason: null, logprobs: { content: [{ token: "Hi", id: 3, logprob: -0.5, top_logprobs: tops }] } }], left_out: 2 });
  const text = textPart({ choices: [{ text: "Hi", finish_reason: null, logprobs: { tokens: ["Hi"], ids: [3], token_logprobs: [-0.5], top_logprobs: [{ Hi: -0.5, Ho: -1.5 }] } }] });
  const expected = { text: "Hi", tokens: [{ text: "Hi", id: 3, log_prob: -0.5, top: [{ text: "Hi", log_prob: -0.5 }, { text: "Ho", log_prob: -1.5 }] }], finish: null };
  assert.deepEqual(chat, { ...expected, left_out: 2 });
  assert.deepEqual(text, { ...expected, left_out: 0 });
  assert.deepEqual(chatPart({ choices: [] }).tokens, []);
});

test("a character of several tokens is one piece, and the end token is no text", () => {
  const answer = new Answer("m");
  answer.add(part("a", [token("a")]), 1);
  answer.add(part("", [token("bytes:\\xc3")]), 2);
  answer.add(part("é", [token("bytes:\\xa9")]), 3);
  answer.add(part("", [token("</s>", -3)], "stop"), 4);
  assert.deepEqual(answer.pieces.map(({ text, tokens }) => [text, tokens.length]), [["a", 1], ["é", 2]]);
  assert.deepEqual([answer.text, answer.finish, answer.end.text, answer.n_new], ["aé", "stop", "</s>", 4]);
  assert.deepEqual(answer.written.map((one) => one.text), ["a", "bytes:\\xc3", "bytes:\\xa9"]);
  assert.ok(Math.abs(answer.perplexity - Math.exp(6 / 4)) < 1e-9);
  assert.deepEqual([answer.first_s, speed(answer)], [1, 1]);
});

test("another token replaces one and all after it; the first one has no leading space", () => {
  const answer = new Answer("m");
  for (const text of ["the", " cat", " sat"]) answer.add(part(text, [token(text, -1, [token(text)])]), 1);
  const begun = answer.with(1, { text: " dog", log_prob: -2 });
  assert.deepEqual(begun.map((piece) => piece.text), ["the", " dog"]);
  assert.deepEqual(begun[1].tokens[0].top.map((one) => one.text), [" cat"]);
  assert.deepEqual(answer.with(0, { text: " a", log_prob: -2 }).map((piece) => piece.text), ["a"]);
  const next = new Answer("m", begun);
  next.add(part(" ran", [token(" ran")], "length"), 1);
  assert.deepEqual([next.begun, next.text, next.n_new], ["the dog", "the dog ran", 1]);
  assert.deepEqual(next.written.map((one) => one.text), [" ran"]);
});

test("the address of the inspector has the name and the texts, quoted", () => {
  assert.equal(lookAddress("org/a model", { text: "a&b #1", ids: "1,2" }), "look/org/a%20model/#text=a%26b%20%231&ids=1%2C2");
});

test("a text continues with whole characters only, and with no special token", () => {
  assert.ok(isWritable(" the", ["<|im_end|>"]) && isWritable("bytes:", []));
  assert.ok(!isWritable("", []) && !isWritable("bytes:\\xe6\\x97", []) && !isWritable("<|im_end|>", ["<|im_end|>"]));
});
