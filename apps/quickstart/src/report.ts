import { formatBytes, formatPercent, formatSeconds } from "@mosaic/attention/planner";
import { closedFormTraffic, type ExpectedRun } from "./prediction.ts";
import { groupDigits } from "./format.ts";
import type { PlacementChoice, RankReport, Settings, GridShape } from "./job.ts";
import { formatMask } from "./mask.ts";
import { type Accuracy, toErrorUnits, type VerificationResult } from "./verify.ts";

/** Results of one run. */
export interface RunResult {
  readonly settings: Settings;
  readonly plan: ExpectedRun;
  readonly reports: readonly RankReport[];
  /** Share of communication hidden behind compute; undefined when nothing was sent. */
  readonly overlap: number | undefined;
  readonly singleDeviceReport: RankReport;
  readonly verdict: VerificationResult;
  /** Seconds from the start of the program. */
  readonly totalSeconds: number;
}

/** Summary of a run, in seconds and bytes, as printed by `--json`. */
export interface Summary {
  readonly tokens: number;
  readonly ranks: number;
  readonly device: string;
  readonly backend: string;
  /** Shape of the ranks in two dimensions. Null for backends without two dimensions. */
  readonly shape: GridShape | null;
  readonly dtype: string;
  /** The mask in the format of `--mask`, with its argument. */
  readonly mask: string;
  readonly placement: string;
  readonly backward: boolean;
  readonly numHeads: number;
  readonly dim: number;
  readonly seconds: number;
  /** Prediction of the planner, if the machine was measured. */
  readonly secondsPredicted: number | null;
  readonly secondsOneDevice: number;
  readonly totalSeconds: number;
  readonly bytesSent: number;
  /** Expected bytes: by formula, and by running the same call on symbolic devices. */
  readonly bytesSentClosedForm: number | null;
  readonly bytesSentPlanned: number;
  readonly overlap: number | null;
  readonly peakBytesPerRank: number;
  readonly peakBytesOneDevice: number;
  readonly maxError: number;
  readonly errorRatio: number;
  readonly errors: Readonly<Record<string, Accuracy>>;
  readonly sampledRows: number;
  readonly visibleKeys: number;
}

export function summarize({
  settings,
  plan,
  reports,
  overlap,
  singleDeviceReport,
  verdict,
  totalSeconds,
}: RunResult): Summary {
  const {
    tokens,
    ranks,
    device = "cpu",
    backend,
    shape,
    dtype,
    mask,
    placement,
    backward,
    numHeads,
    headDim,
  } = settings;
  return {
    tokens,
    ranks,
    device,
    backend,
    shape: shape ?? null,
    dtype,
    mask: formatMask(mask),
    placement,
    backward,
    numHeads,
    dim: headDim,
    seconds: elapsedSeconds(reports),
    secondsPredicted: plan.prediction?.seconds ?? null,
    secondsOneDevice: elapsedSeconds([singleDeviceReport]),
    totalSeconds,
    bytesSent: reports.reduce((sum, report) => sum + report.bytesSent, 0),
    bytesSentClosedForm: closedFormTraffic(settings) ?? null,
    bytesSentPlanned: plan.bytesSent,
    overlap: overlap ?? null,
    peakBytesPerRank: Math.max(...reports.map(({ peakBytes }) => peakBytes)),
    peakBytesOneDevice: singleDeviceReport.peakBytes,
    maxError: verdict.maxError,
    errorRatio: verdict.errorRatio,
    errors: verdict.tensors,
    sampledRows: verdict.rows,
    visibleKeys: verdict.meanEffectiveKeyCount,
  };
}

/** Returns the time from the start of the first rank to the end of the last. */
function elapsedSeconds(reports: readonly RankReport[]): number {
  return Math.max(...reports.map(({ end }) => end)) - Math.min(...reports.map(({ begin }) => begin));
}

/** Returns the report in readable form. */
export function formatReport(result: RunResult): string {
  const { settings, verdict } = result;
  const summary = summarize(result);
  const memoryShare = summary.peakBytesPerRank / summary.peakBytesOneDevice;
  const lines: readonly (readonly [string, string])[] = [
    ["ranks", `${summary.ranks}, each a process with ${describeShards(settings)}`],
    ["bytes moved", `${formatBytes(summary.bytesSent)} (${groupDigits(summary.bytesSent)}, ${describeBytes(summary)})`],
    [
      "overlap",
      summary.overlap === null
        ? "no bytes were sent"
        : `${formatPercent(summary.overlap)} of communication hidden behind compute`,
    ],
    [
      "peak memory",
      `${formatBytes(summary.peakBytesPerRank)} per rank, ${formatBytes(summary.peakBytesOneDevice)} on one device (${formatPercent(memoryShare)})`,
    ],
    [
      "wall time",
      `${formatSeconds(summary.seconds)} on ${summary.ranks} ranks, ${formatSeconds(summary.secondsOneDevice)} on one ${summary.device === "cuda" ? "GPU" : "CPU device with all cores"}`,
    ],
    ...(summary.secondsPredicted === null ? [] : [["predicted", describePrediction(summary)] as const]),
    ...Object.entries(verdict.tensors).map(
      ([name, accuracy]) => [`error of ${name}`, describeAccuracy(accuracy)] as const,
    ),
  ];
  const width = Math.max(...lines.map(([name]) => name.length)) + 3;
  return [
    ...lines.map(([name, value]) => `  ${name.padEnd(width)}${value}`),
    "",
    ...wrapText(
      `A unit is the largest error of single-device attention against float64, measured on ${describeSample(result)}.`,
    ),
    "",
    ...(verdict.failures.length === 0
      ? [
          `  ✓ as accurate as one device: ${formatUnits(verdict.ranksErrorRatio)} from float64, limit ${formatLimits(verdict)}`,
        ]
      : verdict.failures.map((failure) => `  ✗ ${failure}`)),
  ].join("\n");
}

function describePrediction({ secondsPredicted, seconds: measuredSeconds }: Summary): string {
  const relativeError = secondsPredicted! / measuredSeconds - 1;
  return `${formatSeconds(secondsPredicted!)} by the planner, ${formatPercent(Math.abs(relativeError))} ${relativeError < 0 ? "below" : "above"} the measurement`;
}

function describeBytes({ bytesSent, bytesSentClosedForm, bytesSentPlanned }: Summary): string {
  const formulaBytes = bytesSentClosedForm ?? bytesSentPlanned;
  if (bytesSent === formulaBytes && bytesSent === bytesSentPlanned) {
    return bytesSentClosedForm === null ? "as planned" : "equal to the closed form";
  }
  return `closed form ${groupDigits(formulaBytes)}, planned ${groupDigits(bytesSentPlanned)}`;
}

const placementDescriptions: Readonly<Record<PlacementChoice, string>> = {
  contiguous: "",
  zigzag: ", in two ranges (zigzag)",
  striped: ", every N-th position on N ranks (striped)",
  dispatch: ", in ranges chosen for the mask (dispatch)",
};

function describeShards({ tokens, ranks, placement }: Settings): string {
  const tokensPerRank = groupDigits(Math.ceil(tokens / ranks));
  return `${ranks > 1 ? "at most " : ""}${tokensPerRank} tokens${ranks > 1 ? placementDescriptions[placement] : ""}`;
}

function describeAccuracy(accuracy: Accuracy): string {
  const { difference, errorUnit, error } = accuracy;
  return `largest difference from single-device attention ${difference.toExponential(1)} = ${formatUnits(toErrorUnits(difference, errorUnit))} (unit ${errorUnit.toExponential(1)}; ranks against float64 ${error.toExponential(1)})`;
}

const formatUnits = (ratio: number): string => `${ratio.toFixed(2)} units`;

function formatLimits({ tensors }: VerificationResult): string {
  const { out, ...gradientAccuracies } = tensors;
  const limitTexts = Object.entries(gradientAccuracies).map(([name, { limit }]) => `${limit.toFixed(1)} for ${name}`);
  return limitTexts.length > 0
    ? `${out!.limit} for out, ${limitTexts.join(", ")} (gradients have higher limits, because each rank rounds lse once)`
    : `${out!.limit}`;
}

function describeSample({ settings, verdict }: RunResult): string {
  const keysText = settings.mask.name === "full" ? `all ${groupDigits(settings.tokens)} keys` : "all visible keys";
  const rowsText = `${verdict.rows} query rows per head over ${keysText}: evenly spaced rows, and the rows with the largest difference`;
  return settings.backward
    ? `${rowsText}; the loss is computed from the evenly spaced rows, so dk and dv are checked for every key`
    : rowsText;
}

function wrapText(text: string): readonly string[] {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (`${lines.at(-1)} ${word}`.length > 100) lines.push("");
    lines[lines.length - 1] = `${lines.at(-1)} ${word}`.trimStart();
  }
  return lines.map((line) => `  ${line}`);
}
