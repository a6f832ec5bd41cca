// The stages of each flow in a file of JSON have only tensors of the model, and each sublayer has stages.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { blocksOf, stacksOf, stagesOf } from "../../../src/glassformer/apps/inspector/page/stages.js";

const flows = JSON.parse(readFileSync(process.argv[2], "utf-8"));
for (const [name, flow] of Object.entries(flows)) {
  const known = new Map(flow.tensors);
  assert.ok(stacksOf(flow).length > 0, name);
  for (const stack of stacksOf(flow)) {
    for (let block = 0; block < Math.max(1, blocksOf(flow, stack)); block++) {
      const stages = stagesOf(flow, { stack, block });
      const ids = stages.map(({ id }) => id);
      assert.equal(new Set(ids).size, ids.length, `${name}: each stage has its own address`);
      for (const { columns } of stages) {
        for (const { tensor, has_heads: hasHeads } of columns) {
          if (tensor === undefined) continue;
          assert.ok(known.has(tensor), `${name}: ${tensor}`);
          assert.equal(known.get(tensor).length, hasHeads ? 3 : 2, `${name}: ${tensor}`);
        }
      }
      for (const part of ["self_attn", "cross_attn", "ff"]) {
        if (known.has(`${stack}.blocks.${block}.${part}`)) assert.ok(stages.some((stage) => stage.part === part), `${name}: ${part}`);
      }
    }
  }
}
