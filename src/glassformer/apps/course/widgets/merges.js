// The tokens of some words after the first n merges. data: {words: [text], states: [{merge, words: [[symbol]]}]}
function draw(place, data) {
  const shown = element("div");
  const positions = data.states.map((_, number) => number);
  const update = (number) => {
    const state = data.states[number];
    const rows = state.words.map((symbols) =>
      element("div", { style: "margin: 0.25em 0" }, ...symbols.map((symbol, i) =>
        element("code", { style: `border: 1px solid ${COLOURS[i % 2]}; border-radius: 4px; padding: 0 0.3em; margin-right: 0.2em; white-space: pre` }, symbol))));
    const count = state.words.reduce((total, symbols) => total + symbols.length, 0);
    shown.replaceChildren(
      element("p", { style: "margin: 0.4em 0" }, state.merge ? `latest merge: ${state.merge}` : "single characters", `; ${count} tokens`),
      ...rows,
    );
  };
  const merges = slider("number of merges", positions, 0, update);
  fill(place, merges.row, shown);
  merges.update();
}
