import { execFile } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, renameSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { promisify } from "node:util";

const root = join(import.meta.dirname, "../..");
const clientSources = ["agent_client", "agent_delivery", "agent_socket", "control_plane"].map(
  (name) => `native/control/${name}.cc`,
);
const directories = ["native/control", "native/test", "include/mosaic"];
/** `thread` or `address,undefined`: the sanitizers that the programs are compiled with, for manual checks. */
const { MOSAIC_SANITIZE: sanitize, CXX: compiler = "g++" } = process.env;
const output = join(root, "build", sanitize === undefined ? "native-test" : `native-test-${sanitize}`);
const flags = ["-std=c++20", "-O1", "-pthread", ...(sanitize === undefined ? [] : [`-fsanitize=${sanitize}`, "-g"])];

const run = promisify(execFile);

/**
 * Compiles a program of native/test, with the real client if it has ranks, unless it is newer than all source files.
 */
export async function compile(name: "control_frames" | "control_ranks" | "control_stress"): Promise<string> {
  const files = directories.flatMap((directory) =>
    readdirSync(join(root, directory)).map((file) => join(root, directory, file)),
  );
  const newestMtimeMs = Math.max(...files.map((file) => statSync(file).mtimeMs));
  const isFresh = (path: string): boolean => existsSync(path) && statSync(path).mtimeMs > newestMtimeMs;
  const program = join(output, name);
  if (isFresh(program)) return program;
  mkdirSync(output, { recursive: true });
  const sources = [`native/test/${name}.cc`, ...(name === "control_frames" ? [] : clientSources)];
  const objects = await Promise.all(
    sources.map(async (source) => {
      const object = join(output, `${basename(source, ".cc")}.o`);
      const includes = ["native", "native/test", "include"].map((directory) => `-I${join(root, directory)}`);
      if (!isFresh(object))
        await compileInto(object, [...flags, "-Wall", "-Wextra", "-Werror", ...includes, "-c", join(root, source)]);
      return object;
    }),
  );
  await compileInto(program, [...flags, ...objects]);
  return program;
}

/** Compiles to a temporary name first, because test files that run concurrently compile the same program. */
async function compileInto(path: string, options: readonly string[]): Promise<void> {
  const temporaryPath = `${path}.${process.pid}`;
  await run(compiler, [...options, "-o", temporaryPath]);
  renameSync(temporaryPath, path);
}
