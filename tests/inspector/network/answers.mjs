// Answer the requests of a model: FOLDER/NAME.json {web, body, gets, posts} and NAME.safetensors → FOLDER/NAME.out.json.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";

import { ComputedSource } from "../../../src/glassformer/inspector/network/computed_source.js";

const folder = process.argv[2];
for (const name of readdirSync(folder).filter((one) => one.endsWith(".json") && !one.endsWith(".out.json"))) {
  const { web, body, gets, posts, bytes } = JSON.parse(readFileSync(`${folder}/${name}`, "utf8"));
  const source = new ComputedSource(web, new Uint8Array(readFileSync(`${folder}/${name.replace(".json", ".safetensors")}`)));
  const { run } = await source.post("/api/run", body);
  const found = [];
  for (const path of gets) found.push(await source.get(`/api/run/${run}/${path}`));
  for (const [path, given] of posts) found.push(await source.post(`/api/run/${run}/${path}`, given));
  for (const path of bytes) found.push([...new Float32Array((await source.bytes(`/api/run/${run}/${path}`)).buffer)]);
  writeFileSync(`${folder}/${name.replace(".json", ".out.json")}`, JSON.stringify(found));
}
