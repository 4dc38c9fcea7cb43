// Tools that only releases need, at pinned versions, installed separately in build/release/tools. Also the versions of
// Node.js that packages are tried with, which are npm packages too.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const root = fileURLToPath(new URL("../..", import.meta.url));
/** Output directory of releases. git ignores it. */
export const outputDirectory = join(root, "build/release");

const TOOLS = {
  "@arethetypeswrong/cli": "0.18.5",
  "@yarnpkg/cli-dist": "4.18.1",
  pnpm: "10.34.9",
  verdaccio: "6.7.4",
};
/** One of Verdaccio's dependencies is specified by a tag, which mirrors of npm may lack. */
const VERSION_OVERRIDES = { "node-fetch": "2.7.0" };

/** Versions of Node.js that packages are tried with: the oldest supported one, and later ones. */
export const NODE_VERSIONS = ["20.20.2", "22.23.3", "24.21.0"];

/** Runs a command and returns its stdout. Throws with its whole output if it fails. */
export function run(command, args, options = {}) {
  const { status, signal, stdout, stderr, error } = spawnSync(command, args, {
    encoding: "utf8",
    maxBuffer: 1 << 28,
    ...options,
  });
  if (status === 0) return stdout;
  const failureText = error?.message ?? (signal ? `killed by ${signal}` : `expected exit code 0, received ${status}`);
  throw new Error(`${command} ${args.join(" ")}: ${failureText}:\n${stdout ?? ""}${stderr ?? ""}`);
}

/** Installs the tools if necessary. Returns the paths of their programs. */
export function installTools() {
  const toolsDirectory = join(outputDirectory, "tools");
  const manifest = JSON.stringify({ private: true, dependencies: TOOLS, overrides: VERSION_OVERRIDES });
  const file = join(toolsDirectory, "package.json");
  const isInstalled =
    existsSync(join(toolsDirectory, "node_modules")) && existsSync(file) && readFileSync(file, "utf8") === manifest;
  if (!isInstalled) {
    rmSync(toolsDirectory, { recursive: true, force: true });
    mkdirSync(toolsDirectory, { recursive: true });
    writeFileSync(file, manifest);
    run("npm", ["install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund"], {
      cwd: toolsDirectory,
    });
  }
  const getInstalledPath = (path) => join(toolsDirectory, "node_modules", path);
  return {
    attw: getInstalledPath("@arethetypeswrong/cli/dist/index.js"),
    pnpm: getInstalledPath("pnpm/bin/pnpm.cjs"),
    verdaccio: getInstalledPath("verdaccio/bin/verdaccio"),
    yarn: getInstalledPath("@yarnpkg/cli-dist/bin/yarn.js"),
  };
}

/** Returns the directory with the program `node` of a version, for this machine or another platform. */
export function installNode(version, platform = `linux-${process.arch}`) {
  const name = `node-${platform}`;
  const nodeDirectory = join(outputDirectory, "nodes", `${name}-${version}`);
  const bin = join(nodeDirectory, "package/bin");
  if (existsSync(join(bin, "node"))) return bin;
  mkdirSync(nodeDirectory, { recursive: true });
  const packResults = JSON.parse(
    run("npm", ["pack", "--json", `${name}@${version}`, "--pack-destination", nodeDirectory]),
  );
  const [{ filename }] = Array.isArray(packResults) ? packResults : Object.values(packResults);
  run("tar", ["-xzf", join(nodeDirectory, filename), "-C", nodeDirectory]);
  rmSync(join(nodeDirectory, filename));
  return bin;
}

/** Runs an action. Returns its error message, or undefined if it succeeded. */
export function catchFault(action) {
  try {
    action();
    return undefined;
  } catch (error) {
    return error.message;
  }
}
