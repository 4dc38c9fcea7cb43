import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";

// Tests the declarations for programs without @types/node that also type-check the declarations of their dependencies.

interface Manifest {
  readonly name: string;
  readonly dependencies?: Readonly<Record<string, string>>;
}

const packages = join(import.meta.dirname, "../..");

/** Links the shipped files of a package and of all its dependencies. */
function install(name: string, nodeModules: string, installedNames: Set<string>): void {
  if (installedNames.has(name)) return;
  installedNames.add(name);
  const sourceFolder = join(packages, name.replace("@mosaic/", ""));
  const targetFolder = join(nodeModules, name);
  mkdirSync(targetFolder, { recursive: true });
  for (const shippedItem of ["package.json", "dist"])
    symlinkSync(join(sourceFolder, shippedItem), join(targetFolder, shippedItem));
  const { dependencies = {} } = JSON.parse(readFileSync(join(sourceFolder, "package.json"), "utf8")) as Manifest;
  for (const dependency of Object.keys(dependencies))
    if (dependency.startsWith("@mosaic/")) install(dependency, nodeModules, installedNames);
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

const nativePackages = [
  "@mosaic/collectives-nccl",
  "@mosaic/collectives-ucx",
  "@mosaic/kernels-cuda",
  "@mosaic/runtime",
];
const listImports = (names: readonly string[]): string =>
  names.map((name, i) => `import * as p${i} from "${name}"; export { p${i} };`).join("\n");

test.each([
  ["of @mosaic/attention compile without its optional peers and", ["@mosaic/attention"], program],
  ["of native packages compile", nativePackages, listImports(nativePackages)],
] as const)("declarations %s without the types of Node", (_, names, source) => {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-declarations-"));
  try {
    const installedNames = new Set<string>();
    for (const name of names) install(name, join(directory, "node_modules"), installedNames);
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
