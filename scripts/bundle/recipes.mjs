import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";

/** Output files of nvcc. */
const IMAGE_PATTERN = /@root@[\w./-]+\.fatbin/g;

/**
 * Writes `native-recipe.json` into each package with native code. It has the commands that CMake would run, so that the
 * addons can be rebuilt with only a compiler where they do not load. GPU machine code does not depend on the host, so
 * the recipe gives its position in the addon. Returns notes to print.
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

/** Returns the position of an image in the addons of the package at `path`: `{ image, addon, offset, length }`. */
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

/**
 * Returns the commands that compile and link the package at `path`, in order: `{ directory, command }`, with the
 * placeholders @root@ and @cxx@.
 */
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

/**
 * Returns the build commands. Compile commands are in the list that CMake exports, link commands in a script per
 * target. Programs are omitted, because they are tests.
 */
function createSteps(build) {
  const linkCommands = readdirSync(build, { recursive: true })
    .filter((path) => path.endsWith("/link.txt"))
    .map((path) => ({
      directory: dirname(dirname(dirname(join(build, path)))),
      commands: readFileSync(join(build, path), "utf8").trim().split("\n"),
    }))
    .filter(({ commands }) => isArchive(commands) || / -o \S+\.(node|so)\b/.test(commands[0]))
    // Archives come first, because the other targets link them. Targets are then sorted by command.
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
