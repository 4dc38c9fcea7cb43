import { accessSync, constants, statSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, extname, isAbsolute, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { UsageError } from "./errors.ts";

/** How to start one rank. */
export interface Command {
  readonly program: string;
  readonly args: readonly string[];
}

/** What an entry needs to become a command. */
export interface EntryOptions {
  readonly entry: string;
  readonly args: readonly string[];
  readonly cwd: string;
  readonly nodeArgs: readonly string[];
  readonly imports: readonly string[];
}

/** What this Node does with TypeScript by itself; a parameter so that a test can be another Node. */
export interface TypeScriptSupport {
  readonly version: string;
  readonly stripsTypes: boolean;
}

const currentTypeScriptSupport: TypeScriptSupport = {
  version: process.versions.node,
  stripsTypes: Boolean((process.features as { stripsTypes?: unknown }).stripsTypes),
};

const JAVASCRIPT_EXTENSIONS = [".js", ".mjs", ".cjs"];
const STRIPPABLE_EXTENSIONS = [".ts", ".mts", ".cts"];
const TSX_EXTENSIONS = [".tsx", ".jsx"];

/** The script that every Node rank loads before anything of the user's. It lies beside this module in dist/. */
const PRELOAD_PATH = fileURLToPath(new URL("./preload.cjs", import.meta.url));

/** The command that runs a script under this Node. Throws UsageError when the script is missing or of another kind. */
export function nodeCommand(options: EntryOptions, node: TypeScriptSupport = currentTypeScriptSupport): Command {
  const path = resolve(options.cwd, options.entry);
  requireFile(path, options.entry);
  const imports = options.imports.flatMap((module) => ["--import", module]);
  const loaderArgs = loaderArguments(path, options, node);
  const launcherArgs = ["--enable-source-maps", "--require", PRELOAD_PATH];
  return {
    program: process.execPath,
    args: [...launcherArgs, ...loaderArgs, ...imports, ...options.nodeArgs, path, ...options.args],
  };
}

/** The command that runs any program, looked up as a shell would. Throws UsageError when there is none. */
export function programCommand({ entry, args, cwd }: EntryOptions): Command {
  const searchPaths = entry.includes("/") ? [cwd] : (process.env.PATH ?? "").split(delimiter);
  const candidates = searchPaths.map((searchPath) => (isAbsolute(entry) ? entry : resolve(cwd, searchPath, entry)));
  const program = candidates.find(isExecutable);
  if (program !== undefined) return { program, args };
  const isFile = (path: string): boolean => statSync(path, { throwIfNoEntry: false })?.isFile() === true;
  const filePath = candidates.find((path) => tryRead(() => isFile(path)) === true);
  if (filePath !== undefined)
    throw new UsageError(`--exec ${entry}: ${filePath} has no execute permission; run chmod +x ${filePath}`);
  if (!entry.includes("/")) throw new UsageError(`--exec ${entry}: not found on PATH`);
  const path = candidates[0] as string;
  const pathExists = tryRead(() => statSync(path, { throwIfNoEntry: false })) !== undefined;
  throw new UsageError(`--exec ${entry}: ${pathExists ? "not a file" : "no such file"} (${path})`);
}

/** Undefined where the system refuses to look, as in a directory that this user may not enter. */
function tryRead<T>(operation: () => T): T | undefined {
  try {
    return operation();
  } catch {
    return undefined;
  }
}

/** The first executable file called `name` on PATH. */
export function findProgram(name: string): string | undefined {
  return (process.env.PATH ?? "")
    .split(delimiter)
    .map((directory) => join(directory, name))
    .find(isExecutable);
}

function requireFile(path: string, entryText: string): void {
  const stat = statSync(path, { throwIfNoEntry: false });
  if (stat === undefined) throw new UsageError(`entry ${entryText}: no such file (${path})`);
  if (!stat.isFile()) throw new UsageError(`entry ${entryText}: not a file (${path})`);
}

function loaderArguments(path: string, options: EntryOptions, node: TypeScriptSupport): readonly string[] {
  const extension = extname(path);
  if (JAVASCRIPT_EXTENSIONS.includes(extension)) return [];
  const tsx = findTsx(path, options.cwd);
  if (STRIPPABLE_EXTENSIONS.includes(extension)) {
    // Stripping types leaves `using` where it is, which Node has from 24 on.
    if (tsx !== undefined && Number.parseInt(node.version, 10) < 24) return ["--import", tsx];
    if (node.stripsTypes) return [];
    if (hasStripFlag(node.version)) return ["--experimental-strip-types"];
  } else if (!TSX_EXTENSIONS.includes(extension)) {
    throw new UsageError(
      `entry ${options.entry}: expected .js, .mjs, .cjs, .ts or .mts, received "${extension}"; pass --exec to run other programs`,
    );
  }
  if (tsx !== undefined) return ["--import", tsx];
  throw new UsageError(
    `entry ${options.entry}: Node ${node.version} does not run ${extension} files without tsx, and tsx is not installed ` +
      `in this project; run "npm install --save-dev tsx", compile to JavaScript, or use Node 24 or newer`,
  );
}

/** 22.6 brought the flag; from 22.18 and 23.6 on `process.features.typescript` answers instead. */
function hasStripFlag(version: string): boolean {
  const [major = 0, minor = 0] = version.split(".").map(Number);
  return major > 22 || (major === 22 && minor >= 6);
}

/** The user's own tsx, never one of ours: it must fit the user's sources. */
function findTsx(path: string, cwd: string): string | undefined {
  for (const importerPath of [path, join(cwd, "package.json")]) {
    try {
      return pathToFileURL(createRequire(importerPath).resolve("tsx")).href;
    } catch {
      // Not installed there; the next place may have it.
    }
  }
  return undefined;
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}
