import { getEventListeners } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import { detect } from "@mosaic/attention";
import { help, readSettings, UsageError } from "./args.ts";
import { gatherResults, attendOnOneDevice, RanksFailedError, runRanks, createProblem } from "./run.ts";
import { planAutomatically, describeBackend } from "./backends.ts";
import { describeRun, drawComparison, drawPage, drawPlacements, drawTimeline } from "./picture.ts";
import { groupDigits } from "./format.ts";
import { measureProfile, predictRun } from "./prediction.ts";
import { Progress, type WorkUnits } from "./progress.ts";
import { formatReport, type RunResult, summarize } from "./report.ts";
import type { RankSchedule } from "./rank-schedule.ts";
import { needsProfile, type Settings } from "./job.ts";
import { describeMask } from "./mask.ts";
import { overlapFraction, createTimeline } from "./timeline.ts";
import { verify } from "./verify.ts";

const abort = new AbortController();
for (const name of ["SIGINT", "SIGTERM"] as const) {
  process.on(name, () => {
    // The launcher listens while it has ranks to end; else there is nothing to wait for.
    const hasRanks = getEventListeners(abort.signal, "abort").length > 0;
    abort.abort();
    if (!hasRanks) process.exit(128 + constants.signals[name]);
  });
}

process.exitCode = await main(process.argv.slice(2));

async function main(args: readonly string[]): Promise<number> {
  try {
    const settings = readSettings(args);
    if (settings === "help") {
      console.log(help);
      return 0;
    }
    return await withTemporaryDirectory((directory) => runDemo(settings, directory));
  } catch (error) {
    if (error instanceof UsageError) console.error(`${error.message}\n\n${help}`);
    else if (error instanceof RanksFailedError) console.error(error.message);
    else throw error;
    return error instanceof RanksFailedError ? error.exitCode : 2;
  }
}

async function withTemporaryDirectory<T>(body: (directory: string) => Promise<T>): Promise<T> {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-quickstart-"));
  const remove = (): void => rmSync(directory, { recursive: true, force: true });
  process.once("exit", remove);
  try {
    return await body(directory);
  } finally {
    process.off("exit", remove);
    remove();
  }
}

/** Ranks first, then one device, then float64; each with the machine to itself. */
async function runDemo(requested: Settings, directory: string): Promise<number> {
  const started = performance.now();
  const progress = new Progress(process.stderr);
  const settings = await resolveSettings(requested);
  console.log(formatTitle(settings));
  if (settings.backend === "auto") console.log(`\n${planAutomatically(settings).explanation.replace(/^/gm, "  ")}\n`);
  const plan = predictRun(settings);
  const reports = await runRanks(
    { settings, directory, recordEvents: workUnits(plan.schedules[0]!) },
    progress.begin(`${settings.ranks} ranks attend`),
    abort.signal,
  );
  const single = await attendOnOneDevice(settings, progress.begin("one device computes attention, to compare"));
  const verdict = await verify(
    {
      ranks: gatherResults(directory, reports, settings),
      single: single.results,
      problem: await createProblem(settings),
    },
    settings,
    progress.begin("float64 checks a sample"),
  );
  progress.end();

  const lanes = createTimeline(reports, plan.schedules);
  const findings: RunResult = {
    settings,
    plan,
    reports,
    overlap: overlapFraction(reports),
    singleDevice: single.report,
    verdict,
    totalSeconds: (performance.now() - started) / 1000,
  };
  console.log(`\n${formatReport(findings)}`);
  if (settings.svg !== "") {
    writeFileSync(settings.svg, drawTimeline(lanes, describeRun(findings)));
    console.log(`  timeline of compute and transfers: ${settings.svg}`);
  }
  if (settings.dispatch !== "") {
    writeFileSync(settings.dispatch, drawPlacements(settings));
    console.log(`  picture of load and transfers, contiguous and as placed: ${settings.dispatch}`);
  }
  const { prediction, ...planned } = plan;
  if (settings.predict !== "" && prediction) {
    writeFileSync(settings.predict, drawComparison({ ...planned, prediction }, reports, describeRun(findings)));
    console.log(`  picture of the prediction beside the measurement: ${settings.predict}`);
  }
  if (settings.html !== "") {
    writeFileSync(settings.html, drawPage(plan, reports, describeRun(findings)));
    console.log(`  page with the timeline, tiles, bytes by link and load: ${settings.html}`);
  }
  if (settings.json) console.log(JSON.stringify(summarize(findings)));
  return verdict.failures.length === 0 ? 0 : 1;
}

/** The settings with the device chosen, and with a profile of this machine if a prediction needs one. */
async function resolveSettings(settings: Settings): Promise<Settings> {
  if (needsProfile(settings)) return { ...settings, device: "cpu", profile: await measureProfile(settings) };
  if (settings.device !== undefined) return settings;
  const { device, warning } = await detect({ worldSize: settings.ranks, localRanks: settings.ranks });
  if (warning !== undefined) console.error(warning);
  return { ...settings, device };
}

function workUnits({ tiles }: RankSchedule): WorkUnits {
  const backward = tiles.filter((tile) => tile.backward).length;
  return { forward: tiles.length - backward, backward };
}

function formatTitle(settings: Settings): string {
  const { tokens, numHeads, dim, dtype, mask } = settings;
  return `Exact attention (${describeBackend(settings)}) over bacteriophage λ (NC_001416.1): ${groupDigits(tokens)} tokens, ${numHeads} heads × ${dim}, ${dtype}${mask.name === "full" ? "" : `, ${describeMask(mask)}`}${settings.device === "cuda" ? ", on GPUs" : ""}`;
}
