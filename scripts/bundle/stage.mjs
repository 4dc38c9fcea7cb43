import { chmodSync, cpSync, existsSync, mkdirSync, rmSync, symlinkSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { listPackages } from "../workspace.mjs";
import { collectModules, stageModules } from "./modules.mjs";
import { stageRecipes } from "./recipes.mjs";
import { stageRuntime } from "./runtime.mjs";
import { listSources } from "./sources.mjs";

/** Programs that a bare machine is to run; the others need data or pictures. */
const PROGRAMS = ["apps/program", "apps/quickstart", "benchmarks"];
/** What a build leaves in a package. */
const BUILD_OUTPUTS = ["dist", "prebuilds", "build-emulated"];
/** What tests and scripts need besides the packages themselves. */
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

/** Lays out the archive's contents in `directory`, as in this repository so that everything works as it does here. */
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

/** Source maps are as large as all the rest, and the sources are there. */
function copyBuildOutput(root, directory, path) {
  rmSync(join(directory, path), { recursive: true, force: true });
  cpSync(join(root, path), join(directory, path), {
    recursive: true,
    filter: (sourcePath) => !sourcePath.endsWith(".map"),
  });
}

/** As npm links workspaces. */
function link(directory, path, name) {
  const linkPath = join(directory, "node_modules", name);
  mkdirSync(dirname(linkPath), { recursive: true });
  symlinkSync(relative(dirname(linkPath), join(directory, path)), linkPath);
}
