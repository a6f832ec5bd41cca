// Softmax of dot products, with and without the factor 1/√d. data: {normal: [[number]]}: products of random numbers, one row per key
function draw(place, data) {
  const shown = element("div");
  const widths = data.normal[0].map((_, i) => i + 1).filter((d) => Number.isInteger(Math.log2(d)));
  const products = (d) => data.normal.map((row) => row.slice(0, d).reduce((sum, product) => sum + product, 0));
  const bars = (title, weights, colour) => [
    element("p", { style: "margin: 0.5em 0 0.2em" }, title),
    ...weights.map((weight, key) => bar(`key ${key + 1}`, weight, weight.toFixed(3), colour)),
  ];
  const update = (d) => {
    const scores = products(d);
    shown.replaceChildren(
      ...bars("softmax(q·k)", softmax(scores), COLOURS[1]),
      ...bars("softmax(q·k / √d)", softmax(scores.map((score) => score / Math.sqrt(d))), COLOURS[0]),
    );
  };
  const width = slider("width d of q and k", widths, widths[0], update);
  fill(place, width.row, shown);
  width.update();
}
