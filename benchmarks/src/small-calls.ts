import { fileURLToPath } from "node:url";
import * as mosaic from "@mosaic/attention";
import * as nn from "@mosaic/attention/nn";
import { type BenchmarkCase, median, now, type ResultRow, waitUntilIdle } from "./case.ts";
import { type PairedTimings, BaselineProcess } from "./peers.ts";

/** Script of the PyTorch baseline for calls, layers and steps. */
export const script: string = fileURLToPath(new URL("../peers/calls.py", import.meta.url));

/** Number of calls per turn, about 50 ms. */
const CALLS_PER_TURN = 50_000;

/** Timeout in seconds of a turn of the baseline. */
const TIMEOUT_SECONDS = 120;

/** Times calls and training steps, compared in turns with PyTorch's. */
export const smallCallCases: readonly BenchmarkCase[] = [
  createCallCase("add", { requiresGrad: false, run: (a, b) => mosaic.add(a, b).dispose() }),
  createCallCase("add.grad", { requiresGrad: true, run: (a, b) => mosaic.add(a, b).dispose() }),
  createCallCase("mul.grad", { requiresGrad: true, run: (a, b) => mosaic.mul(a, b).dispose() }),
  createStepCase({ embedDim: 128, numLayers: 4, numHeads: 8, batch: 32, tokens: 128 }),
];

/** An operation on 16 elements, whose result is disposed at once. */
interface SmallOperation {
  /** Whether a gradient is recorded. */
  readonly requiresGrad: boolean;
  run(a: mosaic.Tensor, b: mosaic.Tensor): void;
}

function createCallCase(name: string, { requiresGrad, run }: SmallOperation): BenchmarkCase {
  const caseName = `peer-call.${name}.n16`;
  return {
    names: [caseName],
    async run({ repetitions, python }) {
      using baseline = new BaselineProcess([python!, script], TIMEOUT_SECONDS);
      await baseline.request({ op: "prepare", what: "call", name, calls: CALLS_PER_TURN });
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      using a = mosaic.ones(ctx, [16]);
      using b = mosaic.ones(ctx, [16]);
      a.requiresGrad = requiresGrad;
      const timings = await runAlternating(repetitions, baseline, () => {
        for (let i = 0; i < CALLS_PER_TURN; i++) run(a, b);
        return ctx.device.stream.synchronize();
      });
      return [createCallRow(caseName, timings)];
    },
  };
}

/**
 * Returns the minimum seconds over the runs of each turn, with alternating turns of Mosaic and the baseline. Turn 0 is
 * warm-up and is not reported.
 */
// oxlint-disable-next-line max-params -- who, how often, and what
export async function runAlternating(
  repetitions: number,
  baseline: BaselineProcess,
  run: () => Promise<void>,
  runs = 1,
): Promise<PairedTimings> {
  const [ownSeconds, baselineSeconds]: [number[], number[]] = [[], []];
  for (let i = 0; i <= repetitions; i++) {
    await waitUntilIdle();
    const seconds: number[] = [];
    for (let runIndex = 0; runIndex < runs; runIndex++) {
      const startTime = now();
      await run();
      seconds.push(now() - startTime);
    }
    await waitUntilIdle();
    const sample = await baseline.request<{ seconds: number[] }>({ op: "sample", count: runs });
    if (i === 0) continue;
    ownSeconds.push(Math.min(...seconds));
    baselineSeconds.push(Math.min(...sample.seconds));
  }
  return { ownSeconds, baselineSeconds };
}

function computeRatios({ ownSeconds, baselineSeconds }: PairedTimings): {
  medianSpeedRatio: number;
  bestSpeedRatio: number;
} {
  const medianSpeedRatio = median(baselineSeconds.map((seconds, turn) => seconds / ownSeconds[turn]!));
  return { medianSpeedRatio, bestSpeedRatio: Math.min(...baselineSeconds) / Math.min(...ownSeconds) };
}

function createCallRow(name: string, timings: PairedTimings): ResultRow {
  const { medianSpeedRatio, bestSpeedRatio } = computeRatios(timings);
  const [microseconds, baselineMicroseconds] = [timings.ownSeconds, timings.baselineSeconds].map(
    (seconds) => (Math.min(...seconds) / CALLS_PER_TURN) * 1e6,
  ) as [number, number];
  return {
    case: name,
    numbers: {
      vsPeer: medianSpeedRatio,
      bestVsPeer: bestSpeedRatio,
      microseconds,
      peerMicroseconds: baselineMicroseconds,
    },
    text: `${medianSpeedRatio.toFixed(2).padStart(6)} × the speed of PyTorch (median), ${bestSpeedRatio.toFixed(2)} × (best runs): ${microseconds.toFixed(2)} and ${baselineMicroseconds.toFixed(2)} µs per call`,
  };
}

interface StepProblem {
  readonly embedDim: number;
  readonly numLayers: number;
  readonly numHeads: number;
  readonly batch: number;
  readonly tokens: number;
}

/** A block of a causal transformer: attention and an MLP, each with a norm before it and a residual connection. */
class Block extends mosaic.Module {
  readonly norm1: nn.LayerNorm;
  readonly norm2: nn.LayerNorm;
  readonly attention: mosaic.MultiAxisAttention;
  readonly mlp: nn.MLP;

  constructor(ctx: mosaic.Context, { embedDim, numHeads }: StepProblem) {
    super();
    this.norm1 = this.addChild("norm1", new nn.LayerNorm(ctx, embedDim));
    const attention = { embedDim, numHeads, attentionAxis: 1, causal: true };
    this.attention = this.addChild("attention", new mosaic.MultiAxisAttention(ctx, attention));
    this.norm2 = this.addChild("norm2", new nn.LayerNorm(ctx, embedDim));
    this.mlp = this.addChild("mlp", new nn.MLP(ctx, { embedDim }));
  }

  forward(x: mosaic.Tensor): mosaic.Tensor {
    const y = x.add(this.attention.forward(this.norm1.forward(x)));
    return y.add(this.mlp.forward(this.norm2.forward(y)));
  }
}

/** Returns a case for a training step: forward, backward and AdamW. The model is that of `peers/calls.py`. */
function createStepCase(problem: StepProblem): BenchmarkCase {
  const { embedDim, numLayers, batch, tokens } = problem;
  const name = `peer-step.d${embedDim}.l${numLayers}.b${batch}.n${tokens}`;
  return {
    names: [name],
    async run({ repetitions, python }) {
      using baseline = new BaselineProcess([python!, script], TIMEOUT_SECONDS);
      await baseline.request({ op: "prepare", what: "step", problem });
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      const blocks = Array.from({ length: numLayers }, () => new Block(ctx, problem));
      using model = new nn.Sequential(...blocks);
      using optimizer = new nn.AdamW(model, { lr: 1e-3 });
      using x = mosaic.randn(ctx, [batch, tokens, embedDim]);
      using target = mosaic.randn(ctx, [batch, tokens, embedDim]);
      const timings = await runAlternating(repetitions, baseline, () => {
        using loss = mosaic.scope(() => nn.mseLoss(ctx, model.forward(x), target));
        loss.backward();
        optimizer.step();
        optimizer.zeroGrad();
        return ctx.device.stream.synchronize();
      });
      return [createStepRow(name, timings)];
    },
  };
}

function createStepRow(name: string, timings: PairedTimings): ResultRow {
  const { medianSpeedRatio, bestSpeedRatio } = computeRatios(timings);
  const [milliseconds, baselineMilliseconds] = [timings.ownSeconds, timings.baselineSeconds].map(
    (seconds) => Math.min(...seconds) * 1e3,
  ) as [number, number];
  return {
    case: name,
    numbers: {
      vsPeer: medianSpeedRatio,
      bestVsPeer: bestSpeedRatio,
      milliseconds,
      peerMilliseconds: baselineMilliseconds,
    },
    text: `${medianSpeedRatio.toFixed(2).padStart(6)} × the speed of PyTorch (median), ${bestSpeedRatio.toFixed(2)} × (best runs): ${milliseconds.toFixed(1)} and ${baselineMilliseconds.toFixed(1)} ms per step`,
  };
}
