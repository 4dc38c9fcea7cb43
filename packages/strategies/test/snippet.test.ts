import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { plan } from "../src/plan/index.ts";

const root = join(import.meta.dirname, "..");
const umbrella = join(import.meta.dirname, "programs/umbrella.ts");
const launcher = join(root, "../launcher/bin/mosaic-run.js");

test.each([
  { name: "equal shards", tokens: 64, mask: masks.causal(), mesh: { seq: 2, head: 2 } },
  { name: "ragged shards", tokens: 67, mask: masks.slidingWindow(9), mesh: { sp: 4 } },
  { name: "a window on both sides", tokens: 64, mask: masks.slidingWindow({ left: 9, right: 3 }), mesh: { sp: 4 } },
  { name: "global tokens", tokens: 64, mask: masks.globalTokens([0, 7], { queries: true }), mesh: { sp: 4 } },
  { name: "other keys", tokens: 30, keyTokens: 64, mask: masks.causal(), mesh: { sp: 4 } },
])("the code to paste runs as it is: $name", ({ name, ...options }) => {
  const { best } = plan({
    ...options,
    numHeads: 4,
    numKvHeads: 2,
    headDim: 8,
    batch: 2,
    gpusPerNode: 4,
    profile: "cpu-local",
  });
  expect(best.code).toContain("npx mosaic-run --nproc-per-node 4 attend.ts");
  const program = best.code.replace(`"@mosaic/attention"`, JSON.stringify(umbrella));
  const directory = join(root, "build/snippets");
  mkdirSync(directory, { recursive: true });
  const file = join(directory, `${name.replace(" ", "-")}.ts`);
  writeFileSync(file, `${program}console.log("done", out.shape.join());\n`);
  const snippetRun = spawnSync(process.execPath, [launcher, "--nproc-per-node", "4", file], {
    cwd: root,
    encoding: "utf8",
  });
  expect(snippetRun.stderr).toBe("");
  expect(snippetRun.status).toBe(0);
  const shapes = [...snippetRun.stdout.matchAll(/done 2,(\d+),32/g)].map(([, rows]) => Number(rows));
  expect(shapes).toHaveLength(4);
  expect(shapes.reduce((a, b) => a + b, 0)).toBe(options.tokens);
});

test("a custom mask is named, not made up", () => {
  const mask = { ...masks.causal(), name: "mine" };
  const { code } = plan({ tokens: 64, numHeads: 2, headDim: 8, gpusPerNode: 2, mask, profile: "cpu-local" }).best;
  expect(code).toContain("  // mask: mine,");
});

test("on several nodes the code states how it is started", () => {
  const shape = { tokens: 4096, numHeads: 4, headDim: 64, gpusPerNode: 2 };
  const code = (nodes: number) => plan({ ...shape, nodes, profile: "h100-ib400", simulate: 1 }).best.code;
  expect(code(2)).toContain("// npx mosaic-run --hosts n0:2,n1:2 attend.ts  # 2 nodes\n");
  expect(code(3)).toContain("// npx mosaic-run --hosts n0:2,n1:2,… attend.ts  # 3 nodes\n");
});
