import { chmodSync, cpSync, existsSync, mkdirSync, rmSync, symlinkSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { packagesOf } from "../workspace.mjs";
import { modulesOf, stageModules } from "./modules.mjs";
import { stageRecipes } from "./recipes.mjs";
import { stageRuntime } from "./runtime.mjs";
import { sourcesOf } from "./sources.mjs";

/** Programs that a bare machine is to run; the others need data or pictures. */
const PROGRAMS = ["apps/quickstart", "benchmarks"];
/** What a build leaves in a package. */
const BUILT = ["dist", "prebuilds", "build-emulated"];
/** What tests and scripts need besides the packages themselves. */
const TOOLS = ["vitest", "esbuild", "fast-check", "tsx", "node-addon-api", "node-api-headers"];

/** Lays out the archive's contents in `folder`, as in this repository so that everything works as it does here. */
export function stage(root, folder) {
  const packages = packagesOf(root).filter(({ path, isProgram }) => !isProgram || PROGRAMS.includes(path));
  const unbuilt = packages.filter(({ dir }) => !existsSync(join(dir, "dist")));
  if (unbuilt.length > 0) throw new Error(`not built: ${unbuilt.map(({ path }) => path).join(", ")}; npm run build`);
  for (const path of sourcesOf(root, packages)) copy(root, folder, path);
  for (const { path } of packages) {
    for (const built of BUILT) if (existsSync(join(root, path, built))) copyBuilt(root, folder, join(path, built));
    link(folder, path, packages.find((one) => one.path === path).name);
  }
  stageModules(root, folder, modulesOf(root, TOOLS));
  stageRuntime(folder);
  const notes = stageRecipes(root, folder, packages);
  cpSync(join(root, "scripts/bundle/mosaic.sh"), join(folder, "mosaic"));
  chmodSync(join(folder, "mosaic"), 0o755);
  return notes;
}

function copy(root, folder, path) {
  mkdirSync(dirname(join(folder, path)), { recursive: true });
  cpSync(join(root, path), join(folder, path), { recursive: true });
}

/** Source maps are as large as all the rest, and the sources are there. */
function copyBuilt(root, folder, path) {
  rmSync(join(folder, path), { recursive: true, force: true });
  cpSync(join(root, path), join(folder, path), { recursive: true, filter: (from) => !from.endsWith(".map") });
}

/** As npm links workspaces. */
function link(folder, path, name) {
  const at = join(folder, "node_modules", name);
  mkdirSync(dirname(at), { recursive: true });
  symlinkSync(relative(dirname(at), join(folder, path)), at);
}
