import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";

/** What nvcc made. */
const IMAGE_PATTERN = /@root@[\w./-]+\.fatbin/g;

/**
 * Writes `native-recipe.json` into each package with native code: the commands that CMake would run, so that a compiler alone
 * can build the addons again where these do not load. Machine code for GPUs does not depend on the host; where in the addon it
 * lies is part of the recipe. Returns what to report about it.
 */
export function stageRecipes(root, directory, packages) {
  const nativePackages = packages.filter(({ dir }) => existsSync(join(dir, "CMakeLists.txt")));
  return nativePackages.flatMap(({ path }) => {
    const steps = createRecipe(root, path);
    const images = [...new Set(JSON.stringify(steps).match(IMAGE_PATTERN) ?? [])].map((image) =>
      locateImage(root, path, image),
    );
    if (images.includes(undefined))
      return [`${path}: the prebuilt addon contains no fatbin; ./mosaic build will not rebuild this package`];
    writeFileSync(join(directory, path, "native-recipe.json"), JSON.stringify({ images, steps }, null, 1));
    return [];
  });
}

/** Where the addons of the package at `path` hold that image: `{ image, addon, offset, length }`. */
function locateImage(root, path, image) {
  const file = join(root, image.slice("@root@/".length));
  const prebuilds = join(root, path, "prebuilds");
  if (!existsSync(file) || !existsSync(prebuilds)) return undefined;
  const bytes = readFileSync(file);
  for (const addon of readdirSync(prebuilds, { recursive: true }).filter((name) => name.endsWith(".node"))) {
    const offset = readFileSync(join(prebuilds, addon)).indexOf(bytes);
    if (offset >= 0) return { image, addon: `@root@/${path}/prebuilds/${addon}`, offset, length: bytes.length };
  }
  return undefined;
}

/** What compiles and links the package at `path`, in order: `{ directory, command }`, with @root@ and @cxx@ to be filled in. */
export function createRecipe(root, path) {
  const build = mkdtempSync(join(tmpdir(), "mosaic-recipe-"));
  try {
    configure(join(root, path), build);
    const compiler = /^CMAKE_CXX_COMPILER:\w+=(.*)$/m.exec(readFileSync(join(build, "CMakeCache.txt"), "utf8"))[1];
    const pathReplacements = [
      [build, `@root@/${path}/build-cmake`],
      [root.replace(/\/$/, ""), "@root@"],
      [compiler, "@cxx@"],
    ];
    const replacePaths = (text) =>
      pathReplacements.reduce(
        (replacedText, [actualPath, placeholder]) => replacedText.replaceAll(actualPath, placeholder),
        text,
      );
    return createSteps(build).map(({ directory, command }) => ({
      directory: replacePaths(directory),
      command: replacePaths(command),
    }));
  } finally {
    rmSync(build, { recursive: true, force: true });
  }
}

function configure(source, build) {
  const options = ["-G", "Unix Makefiles", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"];
  const { status, stderr } = spawnSync("cmake", ["-S", source, "-B", build, ...options], { encoding: "utf8" });
  if (status !== 0) throw new Error(`cmake could not configure ${source}:\n${stderr}`);
}

/** Compiling is in the list that CMake exports; linking in a script for each target. Programs are left out: they are tests. */
function createSteps(build) {
  const linkCommands = readdirSync(build, { recursive: true })
    .filter((path) => path.endsWith("/link.txt"))
    .map((path) => ({
      directory: dirname(dirname(dirname(join(build, path)))),
      commands: readFileSync(join(build, path), "utf8").trim().split("\n"),
    }))
    .filter(({ commands }) => isArchive(commands) || / -o \S+\.(node|so)\b/.test(commands[0]))
    // Archives are linked into the others; else by place.
    .sort((a, b) => isArchive(b.commands) - isArchive(a.commands) || (a.commands[0] < b.commands[0] ? -1 : 1))
    .flatMap(({ directory, commands }) => commands.map((command) => ({ directory, command })));
  const neededObjects = new Set(
    linkCommands.flatMap(({ directory, command }) => listObjects(command).map((path) => resolve(directory, path))),
  );
  const compileCommands = JSON.parse(readFileSync(join(build, "compile_commands.json"), "utf8"))
    .map(({ directory, command }) => ({ directory, command }))
    .filter(({ directory, command }) => neededObjects.has(resolve(directory, / -o (\S+)/.exec(command)[1])));
  return [...compileCommands, ...linkCommands];
}

const isArchive = (commands) => commands[0].includes("ar qc ");
const listObjects = (command) => command.split(" ").filter((word) => word.endsWith(".o"));
