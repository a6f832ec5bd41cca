/** Server-sent events: read the data of each event. The pieces of a stream may end anywhere. */

/** Reads pieces of a stream. */
export class EventReader {
  constructor() {
    this.rest = "";
  }

  /**
   * Add a piece; return the data of the events that are complete.
   * @param {string} piece
   * @returns {string[]}
   */
  push(piece) {
    const lines = (this.rest + piece).split("\n\n");
    this.rest = lines.pop() ?? "";
    return lines.map(dataOf).filter((data) => data !== "");
  }
}

/** Return the data of one event; empty for a comment. @param {string} event */
function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}
