import { accessSync, constants, statSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, extname, isAbsolute, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { UsageError } from "./errors.ts";
import { ignoreErrors } from "./ignore-errors.ts";

/** The command that starts one rank. */
export interface Command {
  readonly program: string;
  readonly args: readonly string[];
}

/** Options from which the command for an entry is made. */
export interface EntryOptions {
  readonly entry: string;
  readonly args: readonly string[];
  readonly cwd: string;
  readonly nodeArgs: readonly string[];
  readonly imports: readonly string[];
}

/** TypeScript support of this version of Node. A parameter, so that tests can emulate other versions. */
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

/**
 * The script that every Node rank loads before the user's modules. It is in the same directory as this module in dist/.
 */
const PRELOAD_PATH = fileURLToPath(new URL("./preload.cjs", import.meta.url));

/**
 * Returns the command that runs a script with this Node. Throws UsageError if the script is missing or its type
 * unsupported.
 */
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

/** Returns the command that runs any program, which is looked up as in a shell. Throws UsageError if there is none. */
export function programCommand({ entry, args, cwd }: EntryOptions): Command {
  const searchPaths = entry.includes("/") ? [cwd] : (process.env.PATH ?? "").split(delimiter);
  const candidates = searchPaths.map((searchPath) => (isAbsolute(entry) ? entry : resolve(cwd, searchPath, entry)));
  const program = candidates.find(isExecutable);
  if (program !== undefined) return { program, args };
  const isFile = (path: string): boolean => statSync(path, { throwIfNoEntry: false })?.isFile() === true;
  const filePath = candidates.find((path) => ignoreErrors(() => isFile(path)) === true);
  if (filePath !== undefined)
    throw new UsageError(`--exec ${entry}: ${filePath} has no execute permission; run chmod +x ${filePath}`);
  if (!entry.includes("/")) throw new UsageError(`--exec ${entry}: not found on PATH`);
  const path = candidates[0] as string;
  const pathExists = ignoreErrors(() => statSync(path, { throwIfNoEntry: false })) !== undefined;
  throw new UsageError(`--exec ${entry}: ${pathExists ? "not a file" : "no such file"} (${path})`);
}

/** Returns the path of the first executable file called `name` on PATH. */
export function findProgram(name: string): string | undefined {
  return (process.env.PATH ?? "")
    .split(delimiter)
    .map((directory) => join(directory, name))
    .find(isExecutable);
}

/** Throws UsageError unless the path is that of a file that this user may read. */
function requireFile(path: string, entryText: string): void {
  try {
    if (!statSync(path).isFile()) throw new UsageError(`entry ${entryText}: not a file (${path})`);
    accessSync(path, constants.R_OK);
  } catch (error) {
    if (error instanceof UsageError) throw error;
    const { code = "", message } = error as NodeJS.ErrnoException;
    const isMissing = ["ENOENT", "ENOTDIR"].includes(code);
    throw new UsageError(
      `entry ${entryText}: ${isMissing ? `no such file (${path})` : `cannot be read: ${message}; correct its permissions or the path`}`,
    );
  }
}

function loaderArguments(path: string, options: EntryOptions, node: TypeScriptSupport): readonly string[] {
  const extension = extname(path);
  if (JAVASCRIPT_EXTENSIONS.includes(extension)) return [];
  const tsx = findTsx(path, options.cwd);
  if (STRIPPABLE_EXTENSIONS.includes(extension)) {
    // Stripping types keeps `using` declarations, which Node supports from version 24 on.
    if (tsx !== undefined && Number.parseInt(node.version, 10) < 24) return ["--import", tsx];
    if (node.stripsTypes) return [];
    if (hasStripFlag(node.version)) return ["--experimental-strip-types"];
  } else if (!TSX_EXTENSIONS.includes(extension)) {
    const extensions = [...JAVASCRIPT_EXTENSIONS, ...STRIPPABLE_EXTENSIONS, ...TSX_EXTENSIONS].join(", ");
    throw new UsageError(
      `entry ${options.entry}: expected one of ${extensions}, received "${extension}"; pass --exec to run other programs`,
    );
  }
  if (tsx !== undefined) return ["--import", tsx];
  throw new UsageError(
    `entry ${options.entry}: Node ${node.version} does not run ${extension} files without tsx, and tsx is not installed ` +
      `in this project; run "npm install --save-dev tsx", compile to JavaScript, or use Node 24 or newer`,
  );
}

/**
 * The flag exists since Node 22.6. From 22.18 and 23.6 on `process.features.typescript` reports the support instead.
 */
function hasStripFlag(version: string): boolean {
  const [major = 0, minor = 0] = version.split(".").map(Number);
  return major > 22 || (major === 22 && minor >= 6);
}

/** Returns the URL of tsx as installed in the user's project, because its version must match the user's sources. */
function findTsx(path: string, cwd: string): string | undefined {
  for (const importerPath of [path, join(cwd, "package.json")]) {
    try {
      return pathToFileURL(createRequire(importerPath).resolve("tsx")).href;
    } catch {
      // Not installed for this importer; try the next one.
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
