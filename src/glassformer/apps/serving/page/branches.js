/**
 * A conversation whose messages have several versions: an edit or another answer begins a branch, and all are kept.
 *
 * @import { Answer } from "./answer.js"
 *
 * @typedef {{
 *   role: "root" | "user" | "assistant", text: string, answer: Answer | null, parent: Message | null, next: Message[], chosen: number,
 * }} Message
 * `next` are the versions of the next message, and `chosen` is the index of the shown version. The text of an answer is
 * in `answer`.
 */

export class Conversation {
  constructor() {
    /** @type {Message} */
    this.root = { role: "root", text: "", answer: null, parent: null, next: [], chosen: 0 };
  }

  /**
   * Return the messages that are shown. With `before`, stop before that message.
   * @param {Message} [before]
   * @returns {Message[]}
   */
  shown(before) {
    const found = [];
    for (let one = this.root.next[this.root.chosen]; one && one !== before; one = one.next[one.chosen]) found.push(one);
    return found;
  }

  /** The message that a new message follows. */
  get last() {
    return this.shown().at(-1) ?? this.root;
  }

  /**
   * Add a message after another one and show it.
   * @param {Message} parent
   * @param {"user" | "assistant"} role
   * @param {string} text
   * @param {Answer | null} [answer]
   * @returns {Message}
   */
  add(parent, role, text, answer = null) {
    /** @type {Message} */
    const message = { role, text, answer, parent, next: [], chosen: 0 };
    parent.next.push(message);
    parent.chosen = parent.next.length - 1;
    return message;
  }

  /**
   * Return the number of a version of a message, and the number of versions.
   * @param {Message} message
   */
  version({ parent }) {
    return { number: (parent?.chosen ?? 0) + 1, of: parent?.next.length ?? 1 };
  }

  /**
   * Show the version before (−1) or after (1) the one that is shown.
   * @param {Message} message
   * @param {number} step
   */
  turn({ parent }, step) {
    if (parent) parent.chosen = Math.max(0, Math.min(parent.next.length - 1, parent.chosen + step));
  }
}
