import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { build } from "esbuild";
import { expect, test } from "vitest";
import {
  CrossAxisAttention,
  Linear,
  Module,
  MultiAxisAttention,
  MultiAxisAttention2D,
  SelfAttention,
} from "../src/index.ts";
import * as nn from "../src/nn.ts";

/** Packages with an addon load it from their own directory, so a bundler must treat them as external. */
const externalPackages = ["@mosaic/kernels-cpu", "@mosaic/collectives-local", "@mosaic/runtime"];

/** Returns the packages of this repository, without scope, whose files `code` loads, except through dynamic imports. */
async function listBundledPackages(code: string): Promise<readonly string[]> {
  const { metafile } = await build({
    stdin: { contents: code, resolveDir: import.meta.dirname },
    bundle: true,
    platform: "node",
    format: "esm",
    metafile: true,
    write: false,
  });
  const paths = new Set(["<stdin>"]);
  for (const path of paths)
    for (const { path: importedPath, kind } of metafile.inputs[path]?.imports ?? [])
      if (kind !== "dynamic-import") paths.add(importedPath);
  const packageNames = [...paths].flatMap((path) => /([^/]+)\/dist\//.exec(path)?.[1] ?? []);
  return [...new Set(packageNames)].toSorted();
}

test("the root entry does not load planner, nn, models, meta-attention or conformance", async () => {
  expect(await listBundledPackages('export * from "../src/index.ts";')).toEqual([
    "backend-flex",
    "backend-mesh2d",
    "backend-ring",
    "backend-ulysses",
    "collectives-local",
    "core",
    "kernels-cpu",
    "runtime",
    "strategies",
  ]);
  expect(await listBundledPackages('export * from "../src/planner.ts";')).toContain("planner");
});

test("nn also exports the layers of core, like torch.nn", () => {
  expect(nn).toMatchObject({
    Linear,
    Module,
    MultiAxisAttention,
    MultiAxisAttention2D,
    CrossAxisAttention,
    SelfAttention,
  });
});

test("a program such as the README's first one runs as a bundle with external addon packages", async () => {
  const outfile = join(import.meta.dirname, "../build/bundle/program.mjs");
  await build({
    stdin: {
      contents: `
        import * as mosaic from "../src/index.ts";
        await using ctx = await mosaic.init({ device: "cpu", spSize: 1 });
        const attn = new mosaic.MultiAxisAttention(ctx, { embedDim: 128, numHeads: 8, attentionAxis: 1, backend: "ring" });
        using x = mosaic.randn(ctx, [2, 16, 128]);
        using out = attn.forward(x);
        console.log((await out.read()).length);
      `,
      resolveDir: import.meta.dirname,
    },
    bundle: true,
    platform: "node",
    format: "esm",
    target: "node20",
    external: externalPackages,
    outfile,
  });
  const { stdout, stderr, status } = spawnSync(process.execPath, [outfile], { encoding: "utf8" });
  expect({ stdout, status }, stderr).toEqual({ stdout: "4096\n", status: 0 });
});
