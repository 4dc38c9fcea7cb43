import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, vi } from "vitest";

export const CLI: string = join(import.meta.dirname, "../dist/cli.js");
export const INDEX: string = join(import.meta.dirname, "../dist/index.js");
const PROGRAMS = join(import.meta.dirname, "programs");

/** Output and exit of a launcher. */
export interface ProcessOutcome {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
  readonly ms: number;
}

/** A running launcher. */
export interface RunningProcess {
  readonly pid: number;
  readonly child: ChildProcess;
  readonly outcome: Promise<ProcessOutcome>;
  /** Returns all output so far. */
  output(): string;
  /** Waits until the launcher has printed `text` `times` times. */
  waitForOutput(text: string, times?: number): Promise<void>;
}

/** Options of a launcher's start. `env` adds variables to a clean environment; `undefined` removes a variable. */
export interface StartOptions {
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string | undefined>>;
}

interface TestScope {
  readonly mark: string;
  readonly dir: string;
}

/** Each test has a unique mark, which all processes that it starts inherit, and a directory for all written files. */
let testScope: TestScope | undefined;

function currentScope(): TestScope {
  if (testScope === undefined) {
    const runMark = `t-${randomUUID()}`;
    const dir = mkdtempSync(join(tmpdir(), "launcher-test-"));
    testScope = { mark: runMark, dir };
    mkdirSync(join(dir, "tmp"));
  }
  return testScope;
}

/** Returns the directory for this test's files. */
export const testDir = (): string => currentScope().dir;
/** Returns the directory for temporary files of this test's launchers. */
export const temporaryDir = (): string => join(currentScope().dir, "tmp");
/** Returns the path of a program in test/programs. */
export const program = (name: string): string => join(PROGRAMS, name);

/** Starts `mosaic-run` with these arguments. */
export function mosaicRun(args: readonly string[], { cwd, env }: StartOptions = {}): RunningProcess {
  return runNode([CLI, ...args], { ...(cwd === undefined ? {} : { cwd }), ...(env === undefined ? {} : { env }) });
}

/** Starts node with these arguments, as a user would. */
export function runNode(args: readonly string[], { cwd, env }: StartOptions = {}): RunningProcess {
  const startTime = performance.now();
  const child = spawn(process.execPath, args, {
    cwd: cwd ?? testDir(),
    env: { ...cleanEnvironment(), ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let [stdout, stderr] = ["", ""];
  child.stdout.setEncoding("utf8").on("data", (text: string) => (stdout += text));
  child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text));
  const outcome = new Promise<ProcessOutcome>((resolve) =>
    child.on("close", (code, signal) => resolve({ code, signal, stdout, stderr, ms: performance.now() - startTime })),
  );
  const output = (): string => stdout + stderr;
  const waitForOutput = (text: string, times = 1): Promise<void> =>
    waitUntil(
      () => output().split(text).length > times,
      () => `"${text}" was not printed ${times} times in:\n${output()}`,
    );
  return { pid: child.pid ?? 0, child, outcome, output, waitForOutput };
}

/** Runs a launcher to its end. */
export const run = (args: readonly string[], start?: StartOptions): Promise<ProcessOutcome> =>
  mosaicRun(args, start).outcome;

/** Waits for a condition. Fails with the description if it does not become true. */
export async function waitUntil(
  condition: () => boolean,
  describeFailure: () => string,
  timeout = 10_000,
): Promise<void> {
  await vi.waitFor(() => expect(condition(), describeFailure()).toBe(true), { timeout, interval: 2 });
}

function cleanEnvironment(): NodeJS.ProcessEnv {
  const { mark } = currentScope();
  const keptVariables = Object.entries(process.env).filter(
    ([name]) =>
      !/^(MOSAIC_|PET_|SLURM_|TORCHELASTIC_|VITEST|NODE_OPTIONS|NODE_ENV|FORCE_COLOR|NO_COLOR|CUDA_|npm_)/.test(name),
  );
  return { ...Object.fromEntries(keptVariables), MOSAIC_RDZV_ID: mark, TMPDIR: temporaryDir() };
}

/** Returns the processes of this test: those with its mark in their environment, including the launcher itself. */
export function listLivingProcesses(): number[] {
  const { mark } = currentScope();
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => readProc(pid, "environ").includes(mark));
}

/** Returns the children of a process that are not zombies. */
export const listChildren = (parent: number): number[] =>
  readdirSync("/proc")
    .map(Number)
    .filter((pid) => pid > 0 && readParent(pid) === parent && isAlive(pid));

/** Returns the command line of a process, with words separated by spaces; empty if the process has exited. */
export const readCommand = (pid: number): string => readProc(pid, "cmdline").replaceAll("\0", " ");

/** Returns whether a process exists and is not a zombie. */
export const isAlive = (pid: number): boolean => {
  const state = readProc(pid, "stat").split(") ").at(-1)?.[0];
  return state !== undefined && state !== "Z" && state !== "X";
};

const readParent = (pid: number): number => Number(readProc(pid, "stat").split(") ").at(-1)?.split(" ")[1]);

function readProc(pid: number, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, "latin1");
  } catch {
    return "";
  }
}

afterEach(() => {
  if (testScope === undefined) return;
  const leftProcesses = listLivingProcesses().map((pid) => `${pid} ${readCommand(pid)}`);
  const secretDirectories = readdirSync(temporaryDir()).filter((name) => name.startsWith("mosaic-run-"));
  for (const line of leftProcesses) process.kill(Number.parseInt(line, 10), "SIGKILL");
  rmSync(testScope.dir, { recursive: true, force: true });
  testScope = undefined;
  expect(leftProcesses, "processes left behind").toEqual([]);
  expect(secretDirectories, "private directories left behind").toEqual([]);
});
