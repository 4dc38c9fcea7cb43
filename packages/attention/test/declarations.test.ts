import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";

// What programs see that have no @types/node, and that check the declarations of their dependencies.

interface Manifest {
  readonly name: string;
  readonly dependencies?: Readonly<Record<string, string>>;
}

const packages = join(import.meta.dirname, "../..");

/** Links a package and all that it depends on, by what its manifest ships. */
function install(name: string, into: string, done: Set<string>): void {
  if (done.has(name)) return;
  done.add(name);
  const from = join(packages, name.replace("@mosaic/", ""));
  const to = join(into, name);
  mkdirSync(to, { recursive: true });
  for (const each of ["package.json", "dist"]) symlinkSync(join(from, each), join(to, each));
  const { dependencies = {} } = JSON.parse(readFileSync(join(from, "package.json"), "utf8")) as Manifest;
  for (const each of Object.keys(dependencies)) if (each.startsWith("@mosaic/")) install(each, into, done);
}

const program = `
import { init, MultiAxisAttention, randn, type Tensor } from "@mosaic/attention";
import { AdamW, crossEntropy } from "@mosaic/attention/nn";
import * as core from "@mosaic/attention/core";
import * as contextParallel from "@mosaic/attention/context-parallel";
import * as meta from "@mosaic/attention/meta";
import * as planner from "@mosaic/attention/planner";
export async function train(): Promise<Tensor> {
  await using ctx = await init();
  const attn = new MultiAxisAttention(ctx, { embedDim: 8, numHeads: 2, attentionAxis: 1 });
  new AdamW(attn).step();
  return attn.forward(randn(ctx, [1, 4, 8]));
}
export const used = [crossEntropy, core, contextParallel, meta, planner];
`;

const native = ["@mosaic/collectives-nccl", "@mosaic/collectives-ucx", "@mosaic/kernels-cuda", "@mosaic/runtime"];
const listImports = (names: readonly string[]): string =>
  names.map((name, i) => `import * as p${i} from "${name}"; export { p${i} };`).join("\n");

test.each([
  ["of @mosaic/attention compile without its optional peers and", ["@mosaic/attention"], program],
  ["of native packages compile", native, listImports(native)],
] as const)("declarations %s without the types of Node", (_, names, source) => {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-declarations-"));
  try {
    const installed = new Set<string>();
    for (const name of names) install(name, join(directory, "node_modules"), installed);
    const compilerOptions = {
      ...{ target: "es2022", lib: ["es2023", "esnext.disposable"], module: "nodenext", types: [], strict: true },
      ...{ noEmit: true, skipLibCheck: false, preserveSymlinks: true },
    };
    writeFileSync(join(directory, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["train.ts"] }));
    writeFileSync(join(directory, "package.json"), JSON.stringify({ type: "module" }));
    writeFileSync(join(directory, "train.ts"), source);
    const tsc = join(dirname(createRequire(import.meta.url).resolve("typescript/package.json")), "bin/tsc");
    const { stdout, status } = spawnSync(process.execPath, [tsc, "-p", directory], { encoding: "utf8" });
    expect(stdout).toBe("");
    expect(status).toBe(0);
  } finally {
    rmSync(directory, { recursive: true });
  }
});
