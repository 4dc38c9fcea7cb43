import * as mosaic from "@mosaic/attention";
import { Peer, sdpa } from "./peer.ts";
import { type AttentionProblem, AttentionRun, flopsOf, nameOf } from "./attention-problem.ts";
import { type Case, median, type Row } from "./case.ts";
import { rest } from "./rest.ts";

const HEADS = 8;

/** Seconds that one of its runs may take. */
const PATIENCE = 600;

const shapes = [
  { mask: "full", d: 64, n: 1024 },
  { mask: "causal", d: 64, n: 1024 },
  { mask: "full", d: 64, n: 4096 },
  { mask: "causal", d: 64, n: 4096 },
  { mask: "full", d: 128, n: 4096 },
  { mask: "causal", d: 128, n: 4096 },
] as const;

/** Attention on every core beside PyTorch's scaled_dot_product_attention on the same cores, in turns. */
export const peerCases: readonly Case[] = (["f32", "bf16"] as const).flatMap((dtype) =>
  (["forward", "backward"] as const).flatMap((direction) =>
    shapes.map((shape) => peerCase({ direction, dtype, numHeads: HEADS, ...shape })),
  ),
);

function peerCase(problem: AttentionProblem): Case {
  const name = `peer.${nameOf(problem)}`;
  return {
    names: [name],
    async run({ repetitions, python }) {
      using peer = new Peer([python!, sdpa, "--device", "cpu"], PATIENCE);
      await peer.ask({ op: "prepare", backend: "flash", problem: { ...problem, batch: 1 } });
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      using run = new AttentionRun(ctx, problem, mosaic.local());
      const [ours, theirs]: [number[], number[]] = [[], []];
      // Turn 0 warms up and is not told.
      for (let turn = 0; turn <= repetitions; turn++) {
        await rest();
        const { begin, end } = await run.once();
        await rest();
        const { seconds } = await peer.ask<{ seconds: [number] }>({ op: "sample", backend: "flash", count: 1 });
        if (turn === 0) continue;
        ours.push(end - begin);
        theirs.push(seconds[0]);
      }
      return [peerRow(name, flopsOf(problem), { ours, theirs })];
    },
  };
}

/** Seconds of each turn. */
export interface Turns {
  readonly ours: readonly number[];
  readonly theirs: readonly number[];
}

/** How many times as fast we are, as the median over neighbouring turns, and best against best. */
export function peerRow(name: string, flops: number, { ours, theirs }: Turns): Row {
  const vsPeer = median(theirs.map((seconds, turn) => seconds / ours[turn]!));
  const bestVsPeer = Math.min(...theirs) / Math.min(...ours);
  const rate = flops / Math.min(...ours) / 1e9;
  const peerRate = flops / Math.min(...theirs) / 1e9;
  return {
    case: name,
    numbers: { vsPeer, bestVsPeer, rate, peerRate },
    text: `${vsPeer.toFixed(2).padStart(6)} × PyTorch   ${bestVsPeer.toFixed(2)} best against best: ${rate.toFixed(0)} and ${peerRate.toFixed(0)} GFLOP/s`,
  };
}
