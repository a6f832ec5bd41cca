// Table of the keys that each query may attend to. data: {tokens: [text], padding: number of padding tokens at the end}
function draw(place, data) {
  const n = data.tokens.length;
  const settings = { causal: true, padding: true, window: n };
  const shown = element("div");
  const isAllowed = (query, key) =>
    (!settings.causal || key <= query) && (!settings.padding || key < n - data.padding) && Math.abs(query - key) < settings.window;
  const cell = "width: 1.7em; height: 1.7em; border: 1px solid #8886; text-align: center";
  const update = () => {
    const head = element("tr", {}, element("td"), ...data.tokens.map((token) => element("th", { style: "font-weight: normal; padding: 0 0.3em", scope: "col" }, element("code", {}, token))));
    const rows = data.tokens.map((token, query) =>
      element("tr", {}, element("th", { style: "text-align: right; font-weight: normal", scope: "row" }, element("code", {}, token)),
        ...data.tokens.map((_, key) => {
          const allowed = isAllowed(query, key);
          return element("td", { style: `${cell}; background: ${allowed ? COLOURS[0] : "transparent"}; color: white` }, allowed ? "1" : "");
        })));
    const empty = data.tokens.filter((_, query) => !data.tokens.some((_, key) => isAllowed(query, key))).length;
    const total = data.tokens.reduce((sum, _, query) => sum + data.tokens.filter((_, key) => isAllowed(query, key)).length, 0);
    shown.replaceChildren(
      element("table", { style: "border-collapse: collapse; margin: 0.5em 0" }, head, ...rows),
      element("p", { style: "margin: 0.4em 0" }, `${total} of ${n * n} pairs are allowed; queries without any key: ${empty}`),
    );
  };
  const change = (name) => (value) => {
    settings[name] = value;
    update();
  };
  const widths = data.tokens.map((_, i) => i + 1);
  const window = slider("window (keys)", widths, n, change("window"));
  fill(place, checkbox("causal", true, change("causal")), checkbox("mask the padding", true, change("padding")), window.row, shown);
  window.update();
}
