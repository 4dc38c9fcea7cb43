import { chmodSync, cpSync, existsSync, mkdirSync, rmSync, symlinkSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { listPackages } from "../workspace.mjs";
import { collectModules, stageModules } from "./modules.mjs";
import { stageRecipes } from "./recipes.mjs";
import { stageRuntime } from "./runtime.mjs";
import { listSources } from "./sources.mjs";

/** Programs for a bare machine. The other programs need data or pictures. */
const PROGRAMS = ["apps/program", "apps/quickstart", "benchmarks"];
/** Directories of a package that a build creates. */
const BUILD_OUTPUTS = ["dist", "prebuilds", "build-emulated"];
/** Modules that tests and scripts need besides the packages. */
const TOOLS = [
  "vitest",
  "esbuild",
  "fast-check",
  "tsx",
  "node-addon-api",
  "node-api-headers",
  "@huggingface/jinja",
  "@huggingface/tokenizers",
];

/**
 * Writes the archive's contents to `directory`, with the layout of this repository, so that everything works in the
 * same way.
 */
export function stage(root, directory) {
  const packages = listPackages(root).filter(({ path, isProgram }) => !isProgram || PROGRAMS.includes(path));
  const unbuiltPackages = packages.filter(({ dir }) => !existsSync(join(dir, "dist")));
  if (unbuiltPackages.length > 0)
    throw new Error(`not built: ${unbuiltPackages.map(({ path }) => path).join(", ")}; run npm run build`);
  for (const path of listSources(root, packages)) copy(root, directory, path);
  for (const { path } of packages) {
    for (const outputName of BUILD_OUTPUTS)
      if (existsSync(join(root, path, outputName))) copyBuildOutput(root, directory, join(path, outputName));
    link(directory, path, packages.find((each) => each.path === path).name);
  }
  stageModules(root, directory, collectModules(root, TOOLS));
  stageRuntime(directory);
  const notes = stageRecipes(root, directory, packages);
  cpSync(join(root, "scripts/bundle/mosaic.sh"), join(directory, "mosaic"));
  chmodSync(join(directory, "mosaic"), 0o755);
  return notes;
}

function copy(root, directory, path) {
  mkdirSync(dirname(join(directory, path)), { recursive: true });
  cpSync(join(root, path), join(directory, path), { recursive: true });
}

/** Copies a build output without source maps. They are as large as all the rest, and the sources are included. */
function copyBuildOutput(root, directory, path) {
  rmSync(join(directory, path), { recursive: true, force: true });
  cpSync(join(root, path), join(directory, path), {
    recursive: true,
    filter: (sourcePath) => !sourcePath.endsWith(".map"),
  });
}

/** Links a package as npm links workspaces. */
function link(directory, path, name) {
  const linkPath = join(directory, "node_modules", name);
  mkdirSync(dirname(linkPath), { recursive: true });
  symlinkSync(relative(dirname(linkPath), join(directory, path)), linkPath);
}
