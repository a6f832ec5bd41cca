// Form of the modules, so that they can be joined in a single file: named imports, no cycles, no other address.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const PACKAGE = new URL("../../../src/glassformer/apps/", import.meta.url);
const FOLDERS = ["inspector/page", "inspector/panels", "inspector/network", "serving/page"];
const names = FOLDERS.flatMap((folder) => readdirSync(new URL(folder, PACKAGE)).filter((name) => name.endsWith(".js")).map((name) => `${folder}/${name}`));
const modules = new Map(names.map((name) => [name, readFileSync(new URL(name, PACKAGE), "utf8")]));
const IMPORT = /^import \{ ([\w, ]+) \} from "(\.\.?\/[\w./]+)";$/;

/** The name of the module that a line of another module imports, such as `inspector/page/dom.js`. */
const imported = (name, path) => new URL(path, `file:///${name}`).pathname.slice(1);

test("every import is one line of names from a module of the page or the panels", () => {
  for (const [name, text] of modules) {
    for (const line of text.split("\n").filter((one) => one.startsWith("import "))) {
      const [, names, path] = line.match(IMPORT) ?? assert.fail(`${name}: ${line}`);
      for (const one of names.split(", ")) assert.match(modules.get(imported(name, path)) ?? "", new RegExp(`^export (async function\\*?|function|const|class) ${one}\\b`, "m"), `${name}: ${one}`);
    }
    assert.doesNotMatch(text, /^export (default|\*|\{ \w)|\bimport\(["'](?!\.)|^await /m, name);
  }
});

test("imports have no cycle", () => {
  const done = new Set();
  const visit = (name, path) => {
    assert.ok(!path.includes(name), [...path, name].join(" → "));
    if (done.has(name)) return;
    for (const line of modules.get(name).split("\n")) if (line.startsWith("import ")) visit(imported(name, line.match(IMPORT)[2]), [...path, name]);
    done.add(name);
  };
  visit("inspector/page/served.js", []);
  visit("inspector/network/main.js", []);
  visit("serving/page/main.js", []);
  const onlyTypes = ["inspector/page/types.js"];
  assert.deepEqual([...modules.keys()].filter((name) => !done.has(name)), onlyTypes);
});

test("no module writes HTML, evaluates text, or uses another host", () => {
  for (const [name, text] of modules) assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\("style"/, name);
  const others = ["inspector/page", "serving/page"].flatMap((folder) => [`${folder}/index.html`, `${folder}/style.css`]);
  for (const name of [...others, ...modules.keys()]) {
    const text = readFileSync(new URL(name, PACKAGE), "utf8").replaceAll("http://www.w3.org/2000/svg", "");
    assert.doesNotMatch(text, /https?:\/\/|@import url|\bstyle="|\bon\w+="/, name);
  }
});
