import { fmaPeak } from "@mosaic/attention/planner";
import { median, type Row } from "./case.ts";

/** One repetition: how long it took, and what the machine could do right before, in GFLOP/s. */
export interface TimeWithPeak {
  readonly seconds: number;
  readonly peak: number;
}

/** Runs `once` again and again, each time after a probe of the machine; the first run only warms up. */
export async function timesWithPeak(
  repetitions: number,
  once: () => Promise<number>,
): Promise<readonly TimeWithPeak[]> {
  await once();
  const times: TimeWithPeak[] = [];
  for (let i = 0; i < repetitions; i++) times.push({ peak: fmaPeak(), seconds: await once() });
  return times;
}

/**
 * Throughput against the peak of float32 multiply-adds on registers. `share` compares the best run with the best probe:
 * others' load only ever slows either down. `medianShare` is the median over pairs of a run and the probe before it.
 */
export function peakRow(name: string, flops: number, times: readonly TimeWithPeak[]): Row {
  const gflops = flops / Math.min(...times.map(({ seconds }) => seconds)) / 1e9;
  const peak = Math.max(...times.map((time) => time.peak));
  const share = gflops / peak;
  const medianShare = median(times.map((time) => flops / time.seconds / 1e9 / time.peak));
  return {
    case: name,
    numbers: { gflops, peak, share, medianShare },
    text: `${gflops.toFixed(1).padStart(7)} GFLOP/s   ${(share * 100).toFixed(1).padStart(5)} % of the FMA peak (${peak.toFixed(0)}), median ${(medianShare * 100).toFixed(1)} %`,
  };
}
