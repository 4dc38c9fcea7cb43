// Tools that only releases need, at pinned versions, installed beside the repository's own: build/release/tools. And the versions
// of Node that packages are tried with, which npm has as packages, too.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const root = fileURLToPath(new URL("../..", import.meta.url));
/** What releases leave: git ignores it. */
export const outputDirectory = join(root, "build/release");

const TOOLS = {
  "@arethetypeswrong/cli": "0.18.5",
  "@yarnpkg/cli-dist": "4.18.1",
  pnpm: "10.34.9",
  verdaccio: "6.7.4",
};
/** One of Verdaccio's dependencies is named by a tag, which mirrors of npm need not have. */
const VERSION_OVERRIDES = { "node-fetch": "2.7.0" };

/** The Node.js that packages are tried with: the oldest that is supported, and later ones. */
export const NODE_VERSIONS = ["20.20.2", "22.23.3", "24.21.0"];

/** Runs a command; throws with all it printed if it fails. */
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

/** Installs the tools if they are not there; returns the paths of their programs. */
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

/** The directory that holds the program `node` of a version, for this machine or another platform. */
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

/** What an attempt failed of, as text; undefined if it succeeded. */
export function catchFault(action) {
  try {
    action();
    return undefined;
  } catch (error) {
    return error.message;
  }
}
