import * as mosaic from "@mosaic/attention";
import { median } from "../src/case.ts";
import type { Bench, Case, Result } from "./bench.ts";
import type { Sample } from "./contender.ts";
import { lapsOf } from "./laps.ts";

type Kind = "copy" | "matmul";
const RUNS = 10;

/** What the card does of copying and of multiplying, by PyTorch and by our kernels: the two numbers beside all others. */
export const ceilingCases: readonly Case[] = (["copy", "matmul"] as const).map((kind) => ({
  name: `ceiling.${kind}`,
  part: "ceiling",
  async run(bench: Bench): Promise<Result> {
    const size = sizeOf(kind, bench);
    const runs = Math.min(RUNS, bench.effort.runs);
    const work = kind === "copy" ? 2 * size : 2 * size ** 3;
    const peer = await bench.peer()?.ask<Sample>({ op: "ceiling", kind, size, count: runs });
    await using ctx = await mosaic.init({ device: bench.device, rank: 0, worldSize: 1 });
    const rate = (seconds: readonly number[]): number => work / median(seconds);
    return {
      case: `ceiling.${kind}`,
      size,
      unit: kind === "copy" ? "bytes/s, read and written" : "operations/s",
      mosaic: rate(await ours(ctx, kind, { size, runs })),
      ...(peer && { torch: rate(peer.seconds) }),
    };
  },
}));

/** Bytes of a copy as large as q, k, v and out of a problem; rows of a product of about as much work as the smallest one. */
function sizeOf(kind: Kind, { sizes }: Bench): number {
  const elements = sizes.tokens * sizes.hidden;
  return kind === "copy" ? 8 * elements : 2 ** Math.min(13, Math.floor(Math.log2(elements) / 2));
}

async function ours(
  ctx: mosaic.Context,
  kind: Kind,
  { size, runs }: { size: number; runs: number },
): Promise<number[]> {
  using operands = new DisposableTensors();
  const draw = (shape: mosaic.Shape, dtype: mosaic.DType): mosaic.Tensor =>
    operands.keep(mosaic.randn(ctx, shape, { dtype }));
  const { device } = ctx;
  let step: (turn: number) => void;
  if (kind === "copy") {
    const [from, to] = [0, 1].map(() => [draw([size / 4], "float32"), draw([size / 4], "float32")]);
    step = (turn) => device.kernels.copy(to![turn % 2]!, from![turn % 2]!);
  } else {
    const [a, b] = [0, 1].map(() => [draw([size, size], "bfloat16"), draw([size, size], "bfloat16")]);
    step = (turn) => mosaic.matmul(a![turn % 2]!, b![turn % 2]!).dispose();
  }
  const laps = await lapsOf(
    device,
    Array.from({ length: runs + 1 }, (_, turn) => () => step(turn)),
  );
  return laps.slice(1).map(({ seconds }) => seconds);
}

class DisposableTensors implements Disposable {
  readonly #tensors: mosaic.Tensor[] = [];

  keep(x: mosaic.Tensor): mosaic.Tensor {
    this.#tensors.push(x);
    return x;
  }

  [Symbol.dispose](): void {
    for (const x of this.#tensors) x.dispose();
  }
}
