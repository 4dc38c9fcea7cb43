// mosaic-bench: measures and compares the time of attention with each backend.
import { accessSync, constants, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { dirname, resolve } from "node:path";
import { MosaicError } from "@mosaic/core";
import { UsageError } from "@mosaic/strategies/command-line";
import { type Measurement, measureLength } from "./measure.ts";
import { describeBench, drawBench, formatBenchTable } from "./report.ts";
import { currentSystem } from "../doctor/system.ts";
import { type BenchSettings, help, parseBenchSettings } from "./settings.ts";

async function main(args: readonly string[]): Promise<number> {
  const settings = parseBenchSettings(args);
  if (typeof settings === "string") {
    console.log(settings === "help" ? help : currentSystem.version("@mosaic/attention"));
    return 0;
  }
  checkWritable(settings);
  const measurements: Measurement[] = [];
  for (const length of settings.seqLengths) {
    if (process.stderr.isTTY) process.stderr.write(`\r\u001b[Kmeasuring ${length} tokens`);
    measurements.push(...(await measureLength(settings, length)));
  }
  if (process.stderr.isTTY) process.stderr.write("\r\u001b[K");
  const title = describeBench(settings);
  if (settings.svg !== undefined) writeFileSync(settings.svg, drawBench(measurements, title));
  const { mask, seqLengths: _, json, svg: __, ...otherSettings } = settings;
  const cores = availableParallelism();
  if (json) console.log(JSON.stringify({ ...otherSettings, mask: mask.name, cores, measurements }));
  else console.log(`${title}; ${cores} cores\n\n${formatBenchTable(measurements)}\n\n${formatNotes(settings)}`);
  return 0;
}

function formatNotes({ repetitions, backends }: BenchSettings): string {
  const rounds = repetitions === 1 ? "One round, which" : `Medians of ${repetitions} rounds, each of which`;
  return `${rounds} runs all backends in sequence; ratios are relative to ${backends[0]} in the same round.\nAll ranks share the cores of this process: speedups from multiple hosts or GPUs are not measured.`;
}

function checkWritable({ svg }: BenchSettings): void {
  if (svg === undefined) return;
  try {
    accessSync(dirname(resolve(svg)), constants.W_OK);
  } catch (error) {
    throw new UsageError(`--svg ${svg}: ${(error as Error).message}`, { cause: error });
  }
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  if (!(error instanceof UsageError || error instanceof MosaicError)) throw error;
  console.error(`mosaic-bench: ${error.message}`);
  process.exitCode = error instanceof UsageError ? 2 : 1;
}
