// Run the networks of a folder: FOLDER/NAME.json (settings, inputs) and NAME.safetensors → FOLDER/NAME.out.json, named tensors.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";

import { buildNetwork } from "../../../src/glassformer/apps/inspector/network/computed_source.js";
import { Prefix } from "../../../src/glassformer/apps/inspector/network/reading.js";

const folder = process.argv[2];
for (const name of readdirSync(folder).filter((one) => one.endsWith(".json") && !one.endsWith(".out.json"))) {
  const { config, tied, ids, source_ids } = JSON.parse(readFileSync(`${folder}/${name}`, "utf8"));
  const network = buildNetwork(config, tied, new Uint8Array(readFileSync(`${folder}/${name.replace(".json", ".safetensors")}`)));
  const found = {};
  const tap = (key, { shape, data }) => { found[key] = { shape, data: [...data] }; };
  await network.step(ids, await network.start(source_ids, tap), tap);
  // The same ids one after the other, with the cache.
  const prefix = new Prefix(network);
  const rows = [];
  const isCausal = config.kind === "recurrent" || (config.decoder !== null && config.head.kind === "tokens");
  for (let t = 1; isCausal && t <= ids.length; t++) rows.push([...(await prefix.logits(ids.slice(0, t), source_ids))]);
  found.steps = { shape: [1, rows.length, rows[0]?.length ?? 0], data: rows.flat() };
  writeFileSync(`${folder}/${name.replace(".json", ".out.json")}`, JSON.stringify(found));
}
