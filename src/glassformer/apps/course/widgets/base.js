// Parts of all widgets. Each widget defines `draw(place, data)`, which replaces the static picture in `place`.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];

/** Return an element with attributes and children. Strings become text nodes. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") made.style.cssText = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, String(value));
  }
  made.append(...children);
  return made;
}

/** Return a labelled slider over `values`. A move calls `changed(value)`. */
function slider(label, values, start, changed, shown = String) {
  const output = element("output", { style: "min-width: 4em; font-variant-numeric: tabular-nums" });
  const input = element("input", { type: "range", min: 0, max: values.length - 1, step: 1, style: "flex: 1; max-width: 22em" });
  input.value = String(values.indexOf(start));
  const update = () => {
    output.textContent = shown(values[Number(input.value)]);
    input.setAttribute("aria-valuetext", output.textContent);
    changed(values[Number(input.value)]);
  };
  input.addEventListener("input", update);
  const row = element("label", { style: "display: flex; gap: 0.7em; align-items: center; margin: 0.3em 0" }, element("span", { style: "min-width: 9em" }, label), input, output);
  return { row, update };
}

/** Return a labelled checkbox. */
function checkbox(label, start, changed) {
  const input = element("input", { type: "checkbox" });
  input.checked = start;
  input.addEventListener("change", () => changed(input.checked));
  return element("label", { style: "display: inline-flex; gap: 0.4em; margin: 0.3em 1.2em 0.3em 0" }, input, label);
}

/** Return a row with a label, a bar and a text. `share` (0 to 1) is the length of the bar. */
function bar(label, share, text, colour) {
  const inner = element("div", { style: `width: ${(100 * share).toFixed(2)}%; height: 1em; background: ${colour}` });
  return element(
    "div",
    { style: "display: flex; gap: 0.7em; align-items: center; line-height: 1.3" },
    element("code", { style: "min-width: 7em; text-align: right; white-space: pre" }, label),
    element("div", { style: "flex: 1; max-width: 24em" }, inner),
    element("span", { style: "min-width: 5em; font-variant-numeric: tabular-nums" }, text),
  );
}

/** Return the softmax of a list of numbers (-Infinity gives 0). */
function softmax(scores) {
  const most = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - most));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/** Replace the content of a place by a frame with these children. */
function fill(place, ...children) {
  place.replaceChildren(element("div", { style: "border: 1px solid #8888; border-radius: 6px; padding: 0.7em; margin: 0.7em 0; overflow-x: auto" }, ...children));
}
