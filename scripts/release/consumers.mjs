// Projects that install the packages as users do: in an empty folder, from the registry on this machine, without a
// compiler on the PATH. Each project runs a list of steps.
import { spawnSync } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join, resolve } from "node:path";
import { INSTALLED_BUDGET_MIB, countInstalledBytes, listPrebuilds } from "./installed.mjs";
import { createLoopbackEnvironment } from "./registry.mjs";
import { catchFault, installNode, root, run } from "./tools.mjs";

const programs = join(root, "scripts/release/programs");
/** Commands that scripts of npm and programs of packages need. None is a compiler. */
const COMMANDS = ["sh", "env", "uname", "sed", "dirname", "basename"];
const COMPILERS = ["cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "make", "ninja", "python3", "nvcc"];

/** Creates a PATH of one directory, which has a Node.js and a shell, but no compiler. */
export function createBarePath(directory, node) {
  const bin = join(directory, "bin");
  rmSync(bin, { recursive: true, force: true });
  mkdirSync(bin, { recursive: true });
  for (const command of COMMANDS) {
    const path = ["/usr/bin", "/bin"]
      .map((binDirectory) => join(binDirectory, command))
      .find((candidatePath) => existsSync(candidatePath));
    symlinkSync(realpathSync(path), join(bin, command));
  }
  symlinkSync(join(node, "node"), join(bin, "node"));
  return bin;
}

/** Returns the arguments for Node.js with which each package manager installs the dependencies in package.json. */
export function createInstallArguments(toolPaths) {
  const npm = realpathSync(run("sh", ["-c", "command -v npm"]).trim());
  return {
    npm: [npm, "install", "--no-audit", "--no-fund"],
    pnpm: [toolPaths.pnpm, "install", "--no-frozen-lockfile"],
    yarn: [toolPaths.yarn, "install"],
  };
}

const YARN_CONFIG = {
  nodeLinker: "node-modules",
  enableTelemetry: false,
  enableGlobalCache: false,
  enableImmutableInstalls: false,
  npmMinimalAgeGate: 0,
};

/** Returns the first program of the README, unchanged. */
export function extractFirstProgram(readme) {
  const [, program] = /^```ts[^\n]*\n([\s\S]*?)^```/m.exec(readme) ?? [];
  if (program === undefined) throw new Error("release: expected a program in README.md, received none");
  return program;
}

/** Writes a project to `directory`, without installing it. */
function writeProject(directory, registry) {
  rmSync(directory, { recursive: true, force: true });
  mkdirSync(directory, { recursive: true });
  const { devDependencies } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const tools = ["@types/node", "tsx", "typescript"].map((name) => [name, devDependencies[name]]);
  const manifest = {
    name: "consumer",
    version: "1.0.0",
    private: true,
    type: "module",
    dependencies: { "@mosaic/attention": "latest", "@mosaic/launcher": "latest" },
    devDependencies: Object.fromEntries(tools),
  };
  writeFileSync(join(directory, "package.json"), JSON.stringify(manifest, null, 2));
  const yarn = { ...YARN_CONFIG, npmRegistryServer: registry.url, unsafeHttpWhitelist: ["127.0.0.1"] };
  writeFileSync(join(directory, ".yarnrc.yml"), JSON.stringify(yarn));
  writeFileSync(join(directory, "yarn.lock"), "");
  for (const name of readdirSync(programs)) cpSync(join(programs, name), join(directory, name));
  writeFileSync(join(directory, "train.ts"), extractFirstProgram(readFileSync(join(root, "README.md"), "utf8")));
}

/** Returns the steps of a project. Each is a function that throws if the step fails. */
function createSteps(directory, execute, installArguments) {
  const node = (...args) => execute("node", args);
  const getInstalledPath = (path) => join(directory, "node_modules", path);
  return {
    install: () => {
      execute("node", installArguments);
      for (const name of ["kernels-cuda", "collectives-nccl", "collectives-ucx"]) {
        if (existsSync(getInstalledPath(`@mosaic/${name}`)))
          throw new Error(`@mosaic/${name} was installed without being requested`);
      }
      const sizeMib = countInstalledBytes(directory) / 2 ** 20;
      if (sizeMib > INSTALLED_BUDGET_MIB)
        throw new Error(`the installed packages have ${sizeMib} MiB, the budget is ${INSTALLED_BUDGET_MIB} MiB`);
    },
    import: () => expectText(node("module.mjs"), "4096 finite numbers"),
    require: () => expectText(node("required.cjs"), "a step downhill"),
    typescript: () => {
      node(getInstalledPath("typescript/bin/tsc"), "-p", ".");
      expectText(node("out/typed.mjs"), "256 numbers");
      expectText(node("out/typed.cjs"), "7,10,15,22");
    },
    bundle: () => expectText(runBundle(directory, execute), "4096 finite numbers"),
    "mosaic-run": () => {
      const output = node(getInstalledPath("@mosaic/launcher/bin/mosaic-run.js"), "--nproc-per-node", "4", "train.ts");
      for (const rank of [0, 1, 2, 3]) expectText(output, `rank ${rank} has 262144 numbers`);
    },
    commands: () => {
      const getBinPath = (name) => getInstalledPath(`.bin/${name}`);
      expectText(execute(getBinPath("mosaic-run"), ["--help"]), "--nproc-per-node");
      expectText(execute(getBinPath("mosaic-doctor"), []), "all installed packages work");
      const sizes = ["--seq-lengths", "256", "--backends", "local,ring", "--ranks", "2", "--svg", "chart.svg"];
      expectText(execute(getBinPath("mosaic-bench"), sizes), "ring");
      expectText(readFileSync(join(directory, "chart.svg"), "utf8"), "</svg>");
    },
  };
}

function expectText(output, text) {
  if (!output.includes(text)) throw new Error(`expected "${text}", received:\n${output}`);
}

/**
 * Runs a bundle of one file, with the addons beside it, where no package is installed. The README of @mosaic/attention
 * shows the same.
 */
function runBundle(directory, execute) {
  const bundleDirectory = `${directory}-bundle`;
  rmSync(bundleDirectory, { recursive: true, force: true });
  const esbuild = join(root, "node_modules/esbuild/bin/esbuild");
  run(esbuild, ["module.mjs", "--bundle", "--platform=node", "--format=esm", `--outfile=${bundleDirectory}/app.mjs`], {
    cwd: directory,
  });
  for (const prebuilds of listPrebuilds(directory))
    cpSync(prebuilds, join(bundleDirectory, "prebuilds"), { recursive: true });
  return execute("node", ["app.mjs"], bundleDirectory);
}

/**
 * Tries one Node.js with one package manager. Returns `{ version, manager, bytes, results }`, with the time and any
 * fault of each step.
 */
export function tryConsumer({ version, manager, install: installArguments, registry, directory }) {
  const barePath = createBarePath(`${directory}-path`, installNode(version));
  const baseEnvironment = { HOME: `${directory}-home`, PATH: barePath, LANG: "C.UTF-8", MOSAIC_DEVICE: "cpu", CI: "1" };
  const env = createLoopbackEnvironment(registry, baseEnvironment);
  const execute = (command, args, cwd = directory) => run(resolve(barePath, command), args, { cwd, env });
  // Yarn's cache of packages contains the port of the registry.
  rmSync(baseEnvironment.HOME, { recursive: true, force: true });
  mkdirSync(baseEnvironment.HOME, { recursive: true });
  writeProject(directory, registry);
  for (const compiler of COMPILERS) {
    const { status } = spawnSync(join(barePath, "sh"), ["-c", `command -v ${compiler}`], { env });
    if (status === 0) throw new Error(`release: expected a PATH without ${compiler}, received one with it`);
  }
  const results = [];
  for (const [step, attempt] of Object.entries(createSteps(directory, execute, installArguments))) {
    const startTime = performance.now();
    const fault = catchFault(attempt);
    results.push({ step, seconds: (performance.now() - startTime) / 1000, fault });
    // Without an installation, the later steps would only repeat the same fault.
    if (step === "install" && fault !== undefined) break;
  }
  return { version, manager, bytes: countInstalledBytes(directory), results };
}
