import { writeFileSync } from "node:fs";
import { detect } from "@mosaic/attention";
import { abortOnSignals, Progress, runProgram, withTemporaryDirectory } from "@mosaic/program";
import { help, parseSettings } from "./args.ts";
import { gatherResults, attendOnOneDevice, runRanks, createProblem } from "./run.ts";
import { planAutomatically, describeBackend } from "./backends.ts";
import { describeRun, drawComparison, drawPage, drawPlacements, drawTimeline } from "./picture.ts";
import { groupDigits } from "./format.ts";
import { measureProfile, predictRun } from "./prediction.ts";
import type { WorkUnits } from "./progress.ts";
import { formatReport, type RunResult, summarize } from "./report.ts";
import type { RankSchedule } from "./rank-schedule.ts";
import { needsProfile, type Settings } from "./job.ts";
import { describeMask } from "./mask.ts";
import { overlapFraction, createTimeline } from "./timeline.ts";
import { verify } from "./verify.ts";

const abortSignal = abortOnSignals();

process.exitCode = await runProgram(async () => {
  const settings = parseSettings(process.argv.slice(2));
  if (settings !== "help") return withTemporaryDirectory("mosaic-quickstart-", (path) => runDemo(settings, path));
  console.log(help);
  return 0;
});

/** Runs the ranks, then one device, then float64, one after another so that each has the whole machine. */
async function runDemo(requestedSettings: Settings, directory: string): Promise<number> {
  const startTime = performance.now();
  const progress = new Progress(process.stderr);
  const settings = await resolveSettings(requestedSettings);
  console.log(formatTitle(settings));
  if (settings.backend === "auto") console.log(`\n${planAutomatically(settings).explanation.replace(/^/gm, "  ")}\n`);
  const plan = predictRun(settings);
  const reports = await runRanks(
    { settings, directory, totalWork: countWork(plan.schedules[0]!) },
    beginPhase(progress, `attention on ${settings.ranks} ranks`),
    abortSignal,
  );
  const singleDeviceRun = await attendOnOneDevice(
    settings,
    beginPhase(progress, "single-device attention for comparison"),
  );
  const verdict = await verify(
    {
      distributedResults: gatherResults(directory, reports, settings),
      singleDeviceResults: singleDeviceRun.results,
      problem: await createProblem(settings),
    },
    settings,
    beginPhase(progress, "comparing a sample with float64"),
  );
  progress.end();

  const runResult: RunResult = {
    settings,
    plan,
    reports,
    overlap: overlapFraction(reports),
    singleDeviceReport: singleDeviceRun.report,
    verdict,
    totalSeconds: (performance.now() - startTime) / 1000,
  };
  console.log(`\n${formatReport(runResult)}`);
  writePictures(runResult);
  if (settings.json) console.log(JSON.stringify(summarize(runResult)));
  return verdict.failures.length === 0 ? 0 : 1;
}

/** Shows a phase at 0 %. Returns a function that updates its share. */
function beginPhase(progress: Progress, label: string): (share: number) => void {
  const updateProgress = progress.begin();
  const showProgress = (share: number): void =>
    updateProgress(share, `${String(Math.round(share * 100)).padStart(3)} %  ${label}`);
  showProgress(0);
  return showProgress;
}

/** Writes the pictures that the settings request, and prints their paths. */
function writePictures(runResult: RunResult): void {
  const { settings, plan, reports } = runResult;
  const { prediction, ...planWithoutPrediction } = plan;
  const write = (path: string, description: string, draw: () => string): void => {
    if (path === "") return;
    writeFileSync(path, draw());
    console.log(`  ${description}: ${path}`);
  };
  const caption = describeRun(runResult);
  write(settings.svgPath, "timeline of compute and transfers", () =>
    drawTimeline(createTimeline(reports, plan.schedules), caption),
  );
  write(settings.dispatchPicturePath, "load and transfers, contiguous and chosen placement", () =>
    drawPlacements(settings),
  );
  if (prediction) {
    write(settings.predictionPicturePath, "prediction and measurement", () =>
      drawComparison({ ...planWithoutPrediction, prediction }, reports, caption),
    );
  }
  write(settings.htmlPath, "interactive page", () => drawPage(plan, reports, caption));
}

/** Returns the settings with a chosen device, and with a profile of this machine if a prediction needs one. */
async function resolveSettings(settings: Settings): Promise<Settings> {
  if (needsProfile(settings)) {
    return { ...settings, device: "cpu", profile: settings.profile ?? (await measureProfile(settings)) };
  }
  if (settings.device !== undefined) return settings;
  const { device, warning } = await detect({ worldSize: settings.ranks, localRanks: settings.ranks });
  if (warning !== undefined) console.error(warning);
  return { ...settings, device };
}

function countWork({ tiles }: RankSchedule): WorkUnits {
  const numBackwardTiles = tiles.filter((tile) => tile.isBackward).length;
  return { forward: tiles.length - numBackwardTiles, backward: numBackwardTiles };
}

function formatTitle(settings: Settings): string {
  const { tokens, numHeads, headDim, dtype, mask } = settings;
  return `Exact attention (${describeBackend(settings)}) over bacteriophage λ (NC_001416.1): ${groupDigits(tokens)} tokens, ${numHeads} heads × ${headDim}, ${dtype}${mask.name === "full" ? "" : `, ${describeMask(mask)}`}${settings.device === "cuda" ? ", on GPUs" : ""}`;
}
