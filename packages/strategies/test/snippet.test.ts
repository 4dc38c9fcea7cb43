import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { dispatch } from "@mosaic/backend-flex";
import { contiguous, masks } from "@mosaic/core";
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
  {
    name: "documents",
    tokens: 64,
    mask: masks.documents([12, 13, 13, 13, 13], masks.blockCausal(4)),
    mesh: { sp: 4 },
  },
  {
    name: "answers",
    tokens: 64,
    mask: masks.and(masks.shareQuestion(40, [10, 14]), masks.slidingWindow(9)),
    placement: contiguous([10, 20, 30, 4]),
    mesh: { sp: 4 },
  },
  { name: "other keys", tokens: 30, keyTokens: 64, mask: masks.causal(), mesh: { sp: 4 } },
])("the code to paste runs unchanged: $name", ({ name, ...options }) => {
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

const twoRanks = { tokens: 64, numHeads: 2, headDim: 8, gpusPerNode: 2, profile: "cpu-local" } as const;

test("the code to paste has the number of KV heads and sinks, unless they are those by default", () => {
  const code = plan({ ...twoRanks, numKvHeads: 1, sinks: true }).best.code;
  expect(code).toContain("  numHeads: 2,\n  numKvHeads: 1,\n");
  expect(code).toContain("  sinks: true,\n");
  expect(plan(twoRanks).best.code).not.toMatch(/numKvHeads|sinks/);
});

test("the code to paste contains the lists of masks and placements", () => {
  const inner = masks.blockCausal(16);
  const { code } = plan({
    ...twoRanks,
    mask: masks.documents([20, 11, 11, 11, 11], inner),
    placement: contiguous([10, 54]),
  }).best;
  expect(code).toContain("  mask: mosaic.masks.documents([20, ...Array(4).fill(11)], mosaic.masks.blockCausal(16)),\n");
  expect(code).toContain("  placement: mosaic.contiguous([10, 54]),\n");
  expect(code).not.toContain("Replace");
});

test("the code to paste has placeholders for a mask or a placement that cannot be written as code", () => {
  const mask = { ...masks.causal(), name: "full" };
  const placement = dispatch({ mask: masks.causal(), length: 64, ranks: 2 });
  const { code } = plan({ ...twoRanks, mask, placement }).best;
  expect(code).toContain(`// Replace yourMask with the mask "full".\n`);
  expect(code).toContain("  mask: yourMask,\n");
  expect(code).toContain(`// Replace yourPlacement with the placement "dispatch", from mosaic.dispatch({ … }).\n`);
  expect(code).toContain("  placement: yourPlacement,\n");
});

test("the code to paste states how it is started on several nodes", () => {
  const shape = { tokens: 4096, numHeads: 4, headDim: 64, gpusPerNode: 2 };
  const code = (nodes: number) => plan({ ...shape, nodes, profile: "h100-ib400", simulate: 1 }).best.code;
  expect(code(2)).toContain("// npx mosaic-run --hosts n0:2,n1:2 attend.ts  # 2 nodes\n");
  expect(code(3)).toContain("// npx mosaic-run --hosts n0:2,n1:2,… attend.ts  # 3 nodes\n");
});
