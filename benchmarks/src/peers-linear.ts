import * as mosaic from "@mosaic/attention";
import { type BenchmarkCase } from "./case.ts";
import { onnxScriptPath, BaselineProcess, createBaselineRow } from "./peers.ts";
import { runAlternating, script } from "./small-calls.ts";

/** x [m,k] by weight [n,k]. With `hasGelu` also bias and gelu, which are part of the same kernel in Mosaic. */
interface LinearProblem {
  readonly dtype: "f32" | "bf16";
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly hasGelu: boolean;
}

const shapes = [
  { m: 2048, n: 2048, k: 2048 },
  { m: 8192, n: 384, k: 128 },
  { m: 64, n: 4096, k: 4096 },
] as const;

/**
 * Linear layers, compared in turns with PyTorch's. Those in float32 without an epilogue are also compared with
 * onnxruntime's.
 */
export const baselineLinearCases: readonly BenchmarkCase[] = [
  ...(["f32", "bf16"] as const).flatMap((dtype) =>
    shapes.flatMap((shape) =>
      [false, true].map((hasGelu) => createLinearCase("peer-", { dtype, hasGelu, ...shape }, script)),
    ),
  ),
  ...shapes.map((shape) => createLinearCase("peer-onnx.", { dtype: "f32", hasGelu: false, ...shape }, onnxScriptPath)),
];

/** Number of runs per turn. In the first one threads are asleep. The fastest is reported. */
const RUNS_PER_TURN = 5;

function createLinearCase(prefix: string, problem: LinearProblem, baselineScriptPath: string): BenchmarkCase {
  const { dtype: shortDType, m, n, k, hasGelu } = problem;
  const name = `${prefix}linear${hasGelu ? "-gelu" : ""}.${shortDType}.m${m}.n${n}.k${k}`;
  return {
    names: [name],
    async run({ repetitions, python }) {
      using baseline = new BaselineProcess([python!, baselineScriptPath]);
      await baseline.request({ op: "prepare", what: "linear", problem });
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      const dtype = shortDType === "f32" ? "float32" : "bfloat16";
      using x = mosaic.randn(ctx, [m, k], { dtype });
      // Scaled like initial weights, because large results would make gelu return denormal numbers.
      using unscaledWeight = mosaic.randn(ctx, [n, k], { dtype });
      using weight = unscaledWeight.scale(k ** -0.5);
      using bias = mosaic.randn(ctx, [n], { dtype });
      const timings = await runAlternating(
        repetitions,
        baseline,
        () => {
          using _ = hasGelu ? x.linear(weight, bias, "gelu") : x.linear(weight);
          return ctx.device.stream.synchronize();
        },
        RUNS_PER_TURN,
      );
      return [createBaselineRow(name, 2 * m * n * k, timings)];
    },
  };
}
