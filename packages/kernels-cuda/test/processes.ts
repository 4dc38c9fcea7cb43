import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { emulatedDriver } from "./emulated.ts";

/** What a program printed before it ended. */
export interface ProcessResult {
  readonly stdout: string;
  readonly stderr: string;
}

export interface Program {
  /** JavaScript, with `cuda` and `cudaSystem` in scope. */
  readonly code: string;
  /** On top of the emulated driver's. */
  readonly env?: Readonly<Record<string, string>>;
  /** The package's JavaScript. Default: what is shipped. */
  readonly entry?: string;
}

const defaultEntry = fileURLToPath(new URL("../dist/index.js", import.meta.url));

/**
 * Runs a program in a process of its own, for a process loads its driver once; it must end well, and within a minute: a hang
 * is killed, and rejects.
 */
export async function run({ code, env = {}, entry = defaultEntry }: Program): Promise<ProcessResult> {
  const script = `const { cuda, cudaSystem } = await import(${JSON.stringify(entry)});\n${code}`;
  const fullEnv = { ...process.env, MOSAIC_CUDA_LIBRARY: emulatedDriver, LOCAL_RANK: "0", ...env };
  const node = ["--expose-gc", "--input-type=module", "--eval", script];
  return await promisify(execFile)(process.execPath, node, { env: fullEnv, timeout: 60_000 });
}

/** The errors that `statements` throw, each on its own; "none" for one that throws nothing. */
export async function collectErrors(
  program: Omit<Program, "code">,
  setUpCode: string,
  statements: readonly string[],
): Promise<string[]> {
  const attempts = statements.map((body) => `async () => { ${body} }`);
  const code = `${setUpCode}
    const reported = [];
    for (const attempt of [${attempts.join()}]) {
      await attempt().then(() => reported.push("none"), ({ name, message }) => reported.push(name + ": " + message));
    }
    process.stdout.write(JSON.stringify(reported), () => process.exit());`;
  const { stdout } = await run({ ...program, code });
  return JSON.parse(stdout) as string[];
}
