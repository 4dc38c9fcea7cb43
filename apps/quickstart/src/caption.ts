import { details } from "./backends.ts";
import { bytes, groupDigits, percent, seconds } from "./format.ts";
import type { RankReport } from "./job.ts";
import type { Caption } from "./picture.ts";
import { type Findings, summarize } from "./report.ts";

/** The words of the picture. */
export function captionOf(findings: Findings): Caption {
  const { settings, reports } = findings;
  const { tokens, ranks, numHeads, dim, dtype, causal, backward } = settings;
  const sum = summarize(findings);
  const hidden =
    sum.overlap === null ? "nothing had to be sent" : `${percent(sum.overlap)} of it hidden behind compute`;
  return {
    title: `${capitalize(settings.backend)} attention over a whole genome, ${ranks === 1 ? "on one rank" : `cut over ${ranks} ranks`}`,
    subtitle: [
      "bacteriophage λ (NC_001416.1)",
      ...details(settings),
      `${groupDigits(tokens)} tokens`,
      `${numHeads} heads × ${dim}`,
      dtype,
      causal ? "causal, zigzag placement" : "every query sees every key",
      backward ? "forward and backward" : "forward",
    ].join(" · "),
    holdings: reports.map(holdingOf),
    facts: [
      `${seconds(sum.seconds)} wall time. ${bytes(sum.bytesSent)} sent by all ranks together; ${hidden}.`,
      `At most ${bytes(sum.peakBytesPerRank)} of tensors on a rank, ${bytes(sum.peakBytesOneDevice)} on one device. Largest difference from single-device attention: ${sum.errorRatio.toFixed(2)} of its own error against float64.`,
    ],
  };
}

function holdingOf({ rank, spans }: RankReport): string {
  const ranges = spans
    .filter(({ length }) => length > 0)
    .map(({ start, length, step }) => `${groupDigits(start)}–${groupDigits(start + (length - 1) * step)}`);
  return `rank ${rank}: ${ranges.length > 0 ? `positions ${ranges.join(", ")}` : "nothing"}`;
}

const capitalize = (word: string): string => word.charAt(0).toUpperCase() + word.slice(1);
