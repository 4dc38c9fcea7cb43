import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { emulatedDriver } from "./emulated.ts";

/** The output of a program. */
export interface ProcessResult {
  readonly stdout: string;
  readonly stderr: string;
}

export interface Program {
  /** JavaScript, with `cuda` and `cudaSystem` in scope. */
  readonly code: string;
  /** Variables in addition to those of the emulated driver. */
  readonly env?: Readonly<Record<string, string>>;
  /** The package's JavaScript. Default: the shipped one. */
  readonly entry?: string;
}

const defaultEntry = fileURLToPath(new URL("../dist/index.js", import.meta.url));

/**
 * Runs a program in a separate process, because a process loads its driver only once. Rejects if the program fails or
 * does not exit within a minute; a hanging process is killed.
 */
export async function run({ code, env = {}, entry = defaultEntry }: Program): Promise<ProcessResult> {
  const script = `const { cuda, cudaSystem } = await import(${JSON.stringify(entry)});\n${code}`;
  const fullEnv = { ...process.env, MOSAIC_CUDA_LIBRARY: emulatedDriver, LOCAL_RANK: "0", ...env };
  const node = ["--expose-gc", "--input-type=module", "--eval", script];
  return await promisify(execFile)(process.execPath, node, { env: fullEnv, timeout: 60_000 });
}

/** Returns the error that each of `statements` throws, separately; "none" for one that throws nothing. */
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
