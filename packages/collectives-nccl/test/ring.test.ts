import { checkMeasurements, joined, type Measurement } from "@mosaic/conformance";
import { launch } from "@mosaic/launcher";
import { expect, test } from "vitest";
import { script } from "./processes.ts";

/** Runs ring attention on as many processes, as users start them; resolves to what each of them measured. */
async function attended(size: number): Promise<Measurement[][]> {
  const lines: { rank: number; text: string; stream: string }[] = [];
  const { exitCode } = await launch({
    entry: script,
    args: ["attend", "5"],
    nprocPerNode: size,
    onEvent: (event) => event.type === "line" && lines.push(event),
  });
  const said = lines.map(({ text }) => text).join("\n");
  expect(exitCode, said).toBe(0);
  expect(said).not.toContain('"failed"');
  return Array.from({ length: size }, (_, rank) => {
    const line = lines.find((each) => each.rank === rank && each.text.startsWith('{"event":"attended"'))!;
    return (JSON.parse(line.text) as { measurements: Measurement[] }).measurements;
  });
}

/**
 * All trials as one. Tensor cores round weights to 16 bits, with other luck in every hop than in one piece, and the
 * largest error of one small trial is one number's luck; over all of them it is not.
 */
function pooled(trials: readonly (readonly Measurement[])[]): Measurement {
  const first = trials[0]![0]!;
  const names = Object.keys(first.results);
  const results = names.map((name) => {
    const found = joined(trials.flatMap((ranks) => ranks.map((rank) => rank.results[name]!.found)));
    const local = joined(trials.map(([rank]) => rank!.results[name]!.local));
    return [name, { ...first.results[name]!, found, local }] as const;
  });
  return { ...first, trial: `${trials.length} trials`, results: Object.fromEntries(results) };
}

test("ring attention, forward and backward, on 4 processes: as exact as one device", async () => {
  const ranks = await attended(4);
  const trials = ranks[0]!.map((_, i) => ranks.map((measurements) => measurements[i]!));
  const [exact, rounding] = [/float32$/, /bfloat16$/].map((dtype) =>
    trials.filter(([rank]) => dtype.test(rank!.trial)),
  );
  expect(exact!.length).toBeGreaterThan(8);
  expect(rounding!.length).toBeGreaterThan(8);
  for (const trial of exact!) checkMeasurements("ring", trial);
  checkMeasurements("ring", [pooled(rounding!)]);
});
