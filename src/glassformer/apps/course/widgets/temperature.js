// Probabilities of the next token. data: {tokens: [text], logits: [number], n_shown: number}
function draw(place, data) {
  const settings = { temperature: 1, top_k: data.tokens.length, top_p: 1 };
  const shown = element("div");
  const update = () => {
    const order = data.logits.map((_, i) => i).sort((a, b) => data.logits[b] - data.logits[a]);
    const scaled = order.map((i) => data.logits[i] / settings.temperature);
    const all = softmax(scaled.map((score, place) => (place < settings.top_k ? score : -Infinity)));
    let before = 0;
    const kept = all.map((share) => {
      const keeps = share > 0 && before < settings.top_p;
      before += share;
      return keeps;
    });
    const found = softmax(scaled.map((score, place) => (kept[place] ? score : -Infinity)));
    const rows = found.slice(0, data.n_shown).map((share, place) =>
      bar(data.tokens[order[place]], share, `${(100 * share).toFixed(1)} %`, kept[place] ? COLOURS[0] : "#8888"));
    const n = kept.filter((keeps) => keeps).length;
    shown.replaceChildren(...rows, element("p", { style: "margin: 0.4em 0" }, `${n} of ${data.tokens.length} tokens can be sampled`));
  };
  const change = (name) => (value) => {
    settings[name] = value;
    update();
  };
  const temperatures = Array.from({ length: 40 }, (_, i) => (i + 1) / 20);
  const counts = [1, 2, 3, 5, 10, 20, 50, 100, 200, 500].filter((n) => n < data.tokens.length).concat(data.tokens.length);
  const shares = Array.from({ length: 20 }, (_, i) => (i + 1) / 20);
  const sliders = [
    slider("temperature", temperatures, 1, change("temperature"), (value) => value.toFixed(2)),
    slider("top-k", counts, data.tokens.length, change("top_k")),
    slider("top-p", shares, 1, change("top_p"), (value) => value.toFixed(2)),
  ];
  fill(place, ...sliders.map((made) => made.row), shown);
  for (const made of sliders) made.update();
}
