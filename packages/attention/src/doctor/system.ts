import { spawn, spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, statfsSync } from "node:fs";
import { createRequire } from "node:module";
import { availableParallelism, freemem, networkInterfaces, release, totalmem } from "node:os";
import { fileURLToPath } from "node:url";
import type { Answers } from "./probes.ts";

/** How a probe failed. */
export interface Failure {
  readonly name: string;
  readonly message: string;
  readonly remedy?: string;
}

/** What a probe answered, or how it failed. */
export type Answer<T> = { readonly value: T } | { readonly error: Failure };

/** All that checks may ask of a machine. Nothing here throws: what cannot be had is undefined or empty. */
export interface System {
  readonly env: NodeJS.ProcessEnv;
  readonly node: { readonly version: string; readonly platform: string; readonly glibc: string | undefined };
  /** Of Linux. */
  readonly release: string;
  /** Processors that this process may use. */
  readonly cores: number;
  readonly memory: { readonly total: number; readonly free: number };
  /** Network interfaces other than the loopback, with an address each. */
  readonly interfaces: readonly string[];
  exists(path: string): boolean;
  read(path: string): string | undefined;
  list(path: string): readonly string[];
  /** Bytes of the file system that holds `path`. */
  disk(path: string): { readonly total: number; readonly free: number } | undefined;
  /** What a command prints, if it is there and succeeds. */
  run(command: string, ...args: readonly string[]): string | undefined;
  /** Of an installed package. */
  version(packageName: string): string | undefined;
  /** Runs a probe in a process of its own, for native code may crash or hang. */
  ask<Name extends keyof Answers>(probe: Name): Promise<Answer<Answers[Name]>>;
}

const PROBE_LIMIT_MS = 60_000;
const COMMAND_LIMIT_MS = 10_000;

/** The machine that this process runs on. */
export const thisSystem: System = {
  env: process.env,
  node: { version: process.versions.node, platform: `${process.platform}-${process.arch}`, glibc: glibcVersion() },
  release: release(),
  cores: availableParallelism(),
  memory: { total: totalmem(), free: freemem() },
  interfaces: interfacesWithAddress(),
  exists: existsSync,
  read: (path) => attempt(() => readFileSync(path, "utf8")),
  list: (path) => attempt(() => readdirSync(path)) ?? [],
  disk: (path) =>
    attempt(() => {
      const { blocks, bavail, bsize } = statfsSync(path);
      return { total: blocks * bsize, free: bavail * bsize };
    }),
  run(command, ...args) {
    const { status, stdout } = spawnSync(command, args, { encoding: "utf8", timeout: COMMAND_LIMIT_MS });
    return status === 0 ? stdout : undefined;
  },
  version: (packageName) => attempt(() => versionOf(packageName)),
  ask,
};

function attempt<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

function glibcVersion(): string | undefined {
  const { header } = process.report.getReport() as { header?: { glibcVersionRuntime?: string } };
  return header?.glibcVersionRuntime;
}

function interfacesWithAddress(): readonly string[] {
  return Object.entries(networkInterfaces()).flatMap(([name, addresses = []]) => {
    const [first] = addresses.filter(({ internal }) => !internal);
    return first ? [`${name} (${first.address})`] : [];
  });
}

function versionOf(packageName: string): string {
  const { version } = createRequire(import.meta.url)(`${packageName}/package.json`) as { version: string };
  return version;
}

async function ask<Name extends keyof Answers>(probe: Name): Promise<Answer<Answers[Name]>> {
  const entry = fileURLToPath(new URL("./doctor-probe.js", import.meta.url));
  const child = spawn(process.execPath, [entry, probe], {
    stdio: ["ignore", "pipe", "ignore", "pipe"],
    timeout: PROBE_LIMIT_MS,
    killSignal: "SIGKILL",
  });
  const [, , , answer] = child.stdio as unknown as readonly [null, null, null, NodeJS.ReadableStream];
  let said = "";
  answer.setEncoding("utf8").on("data", (text: string) => (said += text));
  child.stdout?.resume();
  const signal = await new Promise<NodeJS.Signals | null>((resolve) => child.on("close", (_, by) => resolve(by)));
  if (said !== "") return JSON.parse(said) as Answer<Answers[Name]>;
  const hung = signal === "SIGKILL";
  const message = hung
    ? `no answer within ${PROBE_LIMIT_MS / 1000} s`
    : `the process died${signal ? ` of ${signal}` : ""}`;
  return { error: { name: "Crash", message } };
}
