#!/usr/bin/env node
import { setTimeout as delay } from "node:timers/promises";
import { RendezvousError, UsageError } from "../errors.ts";
import { isColorEnabled } from "../output/color.ts";
import { launcherVersion } from "../version.ts";
import { findJob, type RunningJob, readJobSecret } from "./find-job.ts";
import { Observer } from "./observer.ts";
import { parseTopSettings, type TopSettings } from "./options.ts";
import { formatPrometheusMetrics, servePrometheus } from "./prometheus.ts";
import { indexByRank, compareSamples, type RawSample, type WorldSample } from "./sample.ts";
import { formatTable } from "./table.ts";

/** EX_SOFTWARE: the command itself failed. */
const EX_SOFTWARE = 70;
/** Time for which `--once` waits for ranks to connect. */
const CONNECT_TIMEOUT_MS = 10_000;
const POLL_INTERVAL_MS = 20;

async function main(argv: readonly string[]): Promise<number> {
  const settings = parseTopSettings(argv, launcherVersion());
  if (typeof settings === "string") return print(settings);
  const job = findJob(settings.job);
  using observer = await Observer.connect(job.socket, readJobSecret(job));
  const outputSamples = await createOutput(job, settings);
  const sampler = new Sampler(observer);
  await waitForWorld(observer, job, settings.once);
  // The first sample is only the reference of the next one.
  await sampler.sampleWorlds();
  while (observer.isConnected) {
    await Promise.race([delay(settings.intervalMs), observer.ended]);
    const worlds = await sampler.sampleWorlds();
    if (!observer.isConnected) break;
    outputSamples(worlds);
    if (settings.once) return 0;
  }
  if (observer.refusal !== undefined) throw new RendezvousError(observer.refusal);
  process.stderr.write(`mosaic-top: job ${job.id} has ended\n`);
  return 0;
}

/** Takes a sample of each world and compares it with the previous one. */
class Sampler {
  readonly #observer: Observer;
  #previousSamples = new Map<number, RawSample>();

  constructor(observer: Observer) {
    this.#observer = observer;
  }

  async sampleWorlds(): Promise<readonly WorldSample[]> {
    const samples = await Promise.all(
      this.#observer.worlds.map(async (world) => ({ world, raw: indexByRank(await this.#observer.positions(world)) })),
    );
    const previousSamples = this.#previousSamples;
    this.#previousSamples = new Map(samples.map(({ world, raw: rankPositions }) => [world.number, rankPositions]));
    return samples.map(({ world, raw: rankPositions }) =>
      compareSamples(world, previousSamples.get(world.number), rankPositions),
    );
  }
}

async function waitForWorld(observer: Observer, { id }: RunningJob, once: boolean): Promise<void> {
  for (let waitedMs = 0; observer.worlds.length === 0 && observer.isConnected; waitedMs += POLL_INTERVAL_MS) {
    if (once && waitedMs >= CONNECT_TIMEOUT_MS)
      throw new RendezvousError(
        `timed out after ${CONNECT_TIMEOUT_MS / 1000} s: no ranks of job ${id} have connected; a job with one rank does not connect`,
      );
    await delay(POLL_INTERVAL_MS);
  }
}

/** Creates the output of samples: Prometheus metrics, JSON lines or a table. */
async function createOutput(
  job: RunningJob,
  { json, prometheusPort, color, intervalMs }: TopSettings,
): Promise<(worlds: readonly WorldSample[]) => void> {
  const printJsonLine = (worlds: readonly WorldSample[]): void =>
    void print(`${JSON.stringify({ time: new Date().toISOString(), job: job.id, intervalMs, worlds })}\n`);
  if (prometheusPort !== undefined) {
    let latestSamples: readonly WorldSample[] = [];
    const port = await servePrometheus(prometheusPort, () => formatPrometheusMetrics(job.id, latestSamples));
    process.stderr.write(`mosaic-top: job ${job.id} at http://127.0.0.1:${port}/metrics\n`);
    return (worlds) => {
      latestSamples = worlds;
      if (json) printJsonLine(worlds);
    };
  }
  return json ? printJsonLine : createTableOutput(job, isColorEnabled(color));
}

/**
 * Creates an output of tables. On a terminal each table replaces the previous one, otherwise the tables follow one
 * another.
 */
function createTableOutput(job: RunningJob, color: boolean): (worlds: readonly WorldSample[]) => void {
  let drawnLineCount = 0;
  return (worlds) => {
    const { isTTY, columns, rows } = process.stdout;
    const size = isTTY ? { columns, rows: Math.floor(rows / Math.max(1, worlds.length)) } : undefined;
    const style = { color, columns: size?.columns, rows: size?.rows };
    const tables = worlds.flatMap((world) => formatTable(world, style));
    const lines = worlds.length === 0 ? [`job ${job.id}: no ranks are connected`] : tables;
    const clearSequence = isTTY && drawnLineCount > 0 ? `\u001b[${drawnLineCount}A\u001b[J` : "";
    void print(`${clearSequence}${lines.join("\n")}\n`);
    drawnLineCount = lines.length;
  };
}

/** Resolves to the exit code when the text is written. An error ends the process. */
function print(text: string): Promise<number> {
  return new Promise((resolve) =>
    process.stdout.write(text, (error) => {
      if (!error) resolve(0);
    }),
  );
}

function reportError(error: unknown): number {
  if (error instanceof UsageError || error instanceof RendezvousError) {
    process.stderr.write(`mosaic-top: ${error.message}\n`);
    return error.exitCode;
  }
  const stack = error instanceof Error ? error.stack : String(error);
  process.stderr.write(`mosaic-top: internal error, please report it:\n${stack}\n`);
  return EX_SOFTWARE;
}

process.stdout.on("error", ({ code, message }: NodeJS.ErrnoException) => {
  // The reader of the pipe has exited, as in `| head`.
  if (code === "EPIPE") process.exit(0);
  process.stderr.write(`mosaic-top: cannot write to standard output: ${message}; free space, or redirect it\n`);
  process.exit(1);
});
process.exit(await main(process.argv.slice(2)).catch(reportError));
