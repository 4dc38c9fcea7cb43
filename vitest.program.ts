/// <reference types="node" />
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

/**
 * Bundles a TypeScript program of a package's tests that is started as many processes. Otherwise, each process would
 * first load a compiler. Packages that it imports are not bundled. Returns the path of the JavaScript, in the package's
 * `build` directory, from which sources find prebuilt addons as from `dist`.
 */
export async function bundled(source: URL): Promise<string> {
  const path = fileURLToPath(source);
  const root = packageOf(dirname(path));
  const name = relative(join(root, "test"), path).replace(/\.ts$/, "").replaceAll("/", "-");
  const outdir = join(root, "build");
  const options = { bundle: true, format: "esm", target: "node20", packages: "external" } as const;
  await build({ ...options, entryPoints: { [name]: path }, outdir });
  return join(outdir, `${name}.js`);
}

/** A program to run under `mosaic-run`, and the number of ranks. */
export interface LaunchedProgram {
  /** JavaScript file, as returned by `bundled`. */
  readonly script: string;
  readonly ranks: number;
  /** Arguments. They are followed by a folder, to which rank r writes `r.json`. */
  readonly args?: readonly string[];
}

/**
 * Runs ranks as processes under `mosaic-run`. Resolves to the contents of each rank's file. Rejects with their output
 * if one fails.
 */
export async function launched<Result>({ script, ranks, args = [] }: LaunchedProgram): Promise<Result[]> {
  const launcher = fileURLToPath(new URL("cli.js", import.meta.resolve("@mosaic/launcher")));
  const directory = mkdtempSync(join(tmpdir(), "mosaic-ranks-"));
  try {
    const command = [launcher, "--nproc-per-node", String(ranks), script, ...args, directory];
    const job = spawn(process.execPath, command, { stdio: ["ignore", "pipe", "pipe"] });
    const [out, err, [code]] = await Promise.all([text(job.stdout), text(job.stderr), once(job, "close")]);
    if (code !== 0) throw new Error(`mosaic-run exited with ${code}\n${out}\n${err}`);
    return Array.from({ length: ranks }, (_, rank) =>
      JSON.parse(readFileSync(join(directory, `${rank}.json`), "utf8")),
    );
  } finally {
    rmSync(directory, { recursive: true });
  }
}

function packageOf(directory: string): string {
  return readdirSync(directory).includes("package.json") ? directory : packageOf(dirname(directory));
}
