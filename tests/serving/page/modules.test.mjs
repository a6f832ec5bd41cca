// Form of the modules, so that they can be joined in a single file: named imports, no cycles, no other address.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const FOLDER = new URL("../../../src/glassformer/serving/page/", import.meta.url);
const modules = new Map(readdirSync(FOLDER).filter((name) => name.endsWith(".js")).map((name) => [name, readFileSync(new URL(name, FOLDER), "utf8")]));
const IMPORT = /^import \{ ([\w, ]+) \} from "\.\/([\w.]+)";$/;

test("every import is one line of names from a module of the folder", () => {
  for (const [name, text] of modules) {
    for (const line of text.split("\n").filter((one) => one.startsWith("import "))) {
      const [, names, from] = line.match(IMPORT) ?? assert.fail(`${name}: ${line}`);
      for (const one of names.split(", ")) assert.match(modules.get(from) ?? "", new RegExp(`^export (async function|function|const|class) ${one}\\b`, "m"), `${name}: ${one}`);
    }
    assert.doesNotMatch(text, /^export (default|\*|\{ \w)|\bimport\(["'](?!\.)|^await /m, name);
  }
});

test("imports have no cycle", () => {
  const done = new Set();
  const visit = (name, path) => {
    assert.ok(!path.includes(name), [...path, name].join(" → "));
    if (done.has(name)) return;
    for (const line of modules.get(name).split("\n")) if (line.startsWith("import ")) visit(line.match(IMPORT)[2], [...path, name]);
    done.add(name);
  };
  visit("main.js", []);
  assert.deepEqual([...modules.keys()].filter((name) => !done.has(name) && name !== "types.js"), []);
});

test("no module writes HTML, evaluates text, or uses another host", () => {
  for (const [name, text] of modules) assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\("style"/, name);
  for (const name of ["index.html", "style.css", ...modules.keys()]) {
    const text = readFileSync(new URL(name, FOLDER), "utf8").replaceAll("http://www.w3.org/2000/svg", "");
    assert.doesNotMatch(text, /https?:\/\/|@import url|\bstyle="|\bon\w+="/, name);
  }
});
