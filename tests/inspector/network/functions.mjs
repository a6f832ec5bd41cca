// Compute the functions of FILE.json, [{module, name, arguments}], and write their results to FILE.out.json.
import { readFileSync, writeFileSync } from "node:fs";

const NETWORK = "../../../src/glassformer/apps/inspector/network";
const file = process.argv[2];

const read = (value) => {
  if (Array.isArray(value)) return value.map(read);
  if (value && typeof value === "object" && "shape" in value) return { shape: value.shape, data: Float32Array.from(value.data) };
  if (value && typeof value === "object" && "bytes" in value) return Uint8Array.from(value.bytes);
  return value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([key, x]) => [key, read(x)])) : value;
};
const written = (value) => {
  if (ArrayBuffer.isView(value)) return [...value];
  if (Array.isArray(value)) return value.map(written);
  return value && typeof value === "object" && "shape" in value ? { shape: value.shape, data: [...value.data] } : value;
};
const results = [];
for (const { module, name, arguments: given } of JSON.parse(readFileSync(file, "utf8"))) {
  const found = await import(`${NETWORK}/${module}.js`);
  const [outer, inner] = name.split(".");
  const f = inner ? found[outer][inner] : found[outer];
  results.push(written(f(...given.map(read))));
}
writeFileSync(file.replace(".json", ".out.json"), JSON.stringify(results));
