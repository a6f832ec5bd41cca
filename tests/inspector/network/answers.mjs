// Answer the requests of a model, about the run of `body` or with a whole path: FOLDER/NAME.json {web, body, gets, posts, bytes} and NAME.safetensors → FOLDER/NAME.out.json.
// A request that is refused has the answer {error}.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";

import { ComputedSource } from "../../../src/glassformer/apps/inspector/network/computed_source.js";

const folder = process.argv[2];
for (const name of readdirSync(folder).filter((one) => one.endsWith(".json") && !one.endsWith(".out.json"))) {
  const { web, body, gets, posts, bytes } = JSON.parse(readFileSync(`${folder}/${name}`, "utf8"));
  const source = new ComputedSource(web, new Uint8Array(readFileSync(`${folder}/${name.replace(".json", ".safetensors")}`)));
  const { run } = await source.post("/api/run", body);
  const found = [];
  const whole = (path) => (path.startsWith("/") ? path : `/api/run/${run}/${path}`);
  const refusal = (error) => ({ error: error.message });
  for (const path of gets) found.push(await source.get(whole(path)).catch(refusal));
  for (const [path, given] of posts) found.push(await source.post(whole(path), given).catch(refusal));
  for (const path of bytes) found.push([...new Float32Array((await source.bytes(whole(path))).buffer)]);
  writeFileSync(`${folder}/${name.replace(".json", ".out.json")}`, JSON.stringify(found));
}
