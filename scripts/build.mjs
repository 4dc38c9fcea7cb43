// Builds the TypeScript of the package in the current directory: src → dist. The entry points are those of `exports` in
// package.json, with `./dist/x.js` built from src/x.ts, and those of `entries`, which names the source of each further
// file of dist. esbuild compiles the JavaScript. For published packages, tsc writes the declarations. `pages` in
// package.json names pages of docs that are copied to dist, because messages refer to them.
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = fileURLToPath(new URL("..", import.meta.url));
const manifest = JSON.parse(readFileSync("package.json", "utf8"));

/** Returns the source of each output file, by path below dist. */
function listEntries() {
  const exportedFiles = Object.values(manifest.exports ?? {})
    .map((target) => /^\.\/dist\/(.*)\.js$/.exec(target.default ?? target)?.[1])
    .filter((name) => name !== undefined && !(`${name}.js` in (manifest.entries ?? {})));
  return { ...Object.fromEntries(exportedFiles.map((name) => [`${name}.js`, `src/${name}.ts`])), ...manifest.entries };
}

async function bundle(format, sources) {
  if (sources.length === 0) return [];
  const { metafile } = await build({
    entryPoints: sources.map(([out, source]) => ({ in: source, out: out.replace(/\.c?js$/, "") })),
    outdir: "dist",
    bundle: true,
    packages: "external",
    platform: "node",
    target: "node20",
    format,
    // Code that entry points share is built once.
    splitting: format === "esm",
    chunkNames: "chunk-[hash]",
    // Decision 0031. Set MOSAIC_SOURCE_MAPS=1 to use a debugger in this repository.
    sourcemap: process.env.MOSAIC_SOURCE_MAPS === "1",
    ...(format === "cjs" && { outExtension: { ".js": ".cjs" } }),
    metafile: true,
  });
  return Object.keys(metafile.outputs).map((path) => path.slice("dist/".length));
}

const sources = Object.entries(listEntries());
const isCommonJs = ([out]) => out.endsWith(".cjs");
const outputFiles = [
  ...(await bundle(
    "esm",
    sources.filter((entry) => !isCommonJs(entry)),
  )),
  ...(await bundle("cjs", sources.filter(isCommonJs))),
];
// Chunks are named by their content. Removes the chunks and source maps of earlier builds.
for (const file of readdirSync("dist")) {
  if (/^chunk-.*\.js$|\.c?js\.map$/.test(file) && !outputFiles.includes(file)) rmSync(join("dist", file));
}

// An installed package does not contain the other pages, so links to them are replaced by their text.
for (const page of manifest.pages ?? []) {
  const text = readFileSync(join(root, "docs", page), "utf8");
  writeFileSync(join("dist", page), text.replace(/\[([^\]]*)\]\((?!#|https?:)[^)]*\)/g, "$1"));
}

if (!manifest.private) {
  mkdirSync("build", { recursive: true });
  const compilerOptions = {
    rootDir: "../src",
    outDir: "../dist",
    emitDeclarationOnly: true,
    noCheck: true,
    declarationMap: true,
  };
  const config = { extends: join(root, "tsconfig.base.json"), compilerOptions, include: ["../src"] };
  writeFileSync("build/tsconfig.json", JSON.stringify(config));
  const tsc = join(root, "node_modules/typescript/bin/tsc");
  const { status } = spawnSync(process.execPath, [tsc, "-p", "build/tsconfig.json"], { stdio: "inherit" });
  process.exit(status ?? 1);
}
