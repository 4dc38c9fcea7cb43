import * as mosaic from "@mosaic/attention";
import { fmaPeak, readBandwidth } from "@mosaic/attention/planner";
import { type BenchmarkCase, median, now } from "./case.ts";
import {
  onnxScriptPath,
  BaselineProcess,
  createBaselineRow,
  type Sample,
  sampleInTurns,
  sampleBaseline,
  sdpaScriptPath,
} from "./peers.ts";

/** Few queries and many keys, as in decoding, with heads of size 128 and no mask. */
interface DecodeProblem {
  readonly dtype: "f32" | "bf16";
  readonly queries: number;
  readonly keys: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
}

const HEAD_DIM = 128;
const dtypes = { f32: { name: "float32", bytes: 4 }, bf16: { name: "bfloat16", bytes: 2 } } as const;

const heads = [
  { numHeads: 32, numKvHeads: 8 },
  { numHeads: 8, numKvHeads: 1 },
] as const;

const problems: readonly DecodeProblem[] = (["f32", "bf16"] as const).flatMap((dtype) =>
  heads.flatMap((head) =>
    [8192, 65_536, 131_072].flatMap((keys) => [1, 4, 16].map((queries) => ({ dtype, queries, keys, ...head }))),
  ),
);

/**
 * Compared with the time to read the keys and values, at the read bandwidth measured for a working set of the same
 * size (`share`), and with the longer of this and the time of the products at the machine's peak (`bound`).
 */
export const decodeCases: readonly BenchmarkCase[] = problems.map(createDecodeCase);

/**
 * Compared with PyTorch, whose flash backend shares keys among heads by `enable_gqa`. In float32 also compared with
 * onnxruntime's GroupQueryAttention, whose last queries are causal and whose cache is updated in place.
 */
export const baselineDecodeCases: readonly BenchmarkCase[] = [
  ...problems.map((problem) => createBaselineComparisonCase(problem, createPyTorchBaseline(problem))),
  ...problems
    .filter(({ dtype }) => dtype === "f32")
    .map((problem) => createBaselineComparisonCase(problem, createOnnxRuntimeBaseline(problem))),
];

function formatName({ dtype, numHeads, numKvHeads, queries, keys }: DecodeProblem): string {
  return `${dtype}.h${numHeads}on${numKvHeads}.q${queries}.n${keys}`;
}

/**
 * Bytes of keys and values that are read per repetition, some 20 ms at the least. The calls are enqueued one after the
 * other, as in a model, and read the same keys, as the measurement of the bandwidth does.
 */
const MIN_READ_BYTES = 1e9;

/** Draws operands. The returned function computes attention `calls` times and returns the seconds of one call. */
function prepare(ctx: mosaic.Context, { dtype, queries, keys, numHeads, numKvHeads }: DecodeProblem) {
  const drawTensor = (heads: number, length: number): mosaic.Tensor =>
    mosaic.randn(ctx, [1, heads, length, HEAD_DIM], { dtype: dtypes[dtype].name });
  const [q, k, v] = [
    drawTensor(numHeads, queries),
    drawTensor(numKvHeads, keys),
    drawTensor(numKvHeads, keys),
  ] as const;
  return async (calls = 1): Promise<number> => {
    const startTime = now();
    for (let i = 0; i < calls; i++) {
      mosaic.attention(ctx, q, k, v, { backend: mosaic.local(), mask: mosaic.masks.full() }).dispose();
    }
    await ctx.device.stream.synchronize();
    return (now() - startTime) / calls;
  };
}

function createDecodeCase(problem: DecodeProblem): BenchmarkCase {
  const { dtype, queries, keys, numHeads, numKvHeads } = problem;
  const name = `decode.${formatName(problem)}`;
  return {
    names: [name],
    async run({ repetitions }) {
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      const timeOnce = prepare(ctx, problem);
      const bytes = 2 * numKvHeads * keys * HEAD_DIM * dtypes[dtype].bytes;
      const flops = 4 * numHeads * queries * keys * HEAD_DIM;
      const times: { seconds: number; bandwidth: number; peakGflops: number }[] = [];
      for (let i = 0; i <= repetitions; i++) {
        const bandwidth = readBandwidth(bytes);
        const peakGflops = fmaPeak(undefined, dtypes[dtype].name);
        const seconds = await timeOnce(Math.ceil(MIN_READ_BYTES / bytes));
        if (i > 0) times.push({ seconds, bandwidth, peakGflops });
      }
      const seconds = Math.min(...times.map((time) => time.seconds));
      const bandwidth = Math.max(...times.map((time) => time.bandwidth));
      const peakGflops = Math.max(...times.map((time) => time.peakGflops));
      const bound = seconds / (Math.max(bytes / bandwidth, flops / peakGflops) / 1e9);
      const bandwidthShare = bytes / seconds / 1e9 / bandwidth;
      const medianShare = median(times.map((time) => bytes / time.seconds / 1e9 / time.bandwidth));
      const gflops = flops / seconds / 1e9;
      return [
        {
          case: name,
          numbers: { seconds, bandwidth, peakGflops, share: bandwidthShare, medianShare, gflops, bound },
          text: `${(seconds * 1e3).toFixed(2).padStart(8)} ms   ${(bandwidthShare * 100).toFixed(1).padStart(5)} % of read bandwidth (${bandwidth.toFixed(1)} GB/s), median ${(medianShare * 100).toFixed(1)} %, ${gflops.toFixed(0)} of ${peakGflops.toFixed(0)} GFLOP/s, ${bound.toFixed(2)} × the longer of reading and multiplying`,
        },
      ];
    },
  };
}

/** A baseline: the command of its process, and the request that prepares the problem there. */
interface DecodeBaseline {
  readonly name: string;
  readonly command: (python: string) => readonly string[];
  readonly request: Readonly<Record<string, unknown>>;
  readonly sample: (baseline: BaselineProcess) => (count: number) => Promise<Sample>;
}

function createPyTorchBaseline({ dtype, queries, keys: n, numHeads, numKvHeads }: DecodeProblem): DecodeBaseline {
  const problem = { batch: 1, numHeads, numKvHeads, queries, n, d: HEAD_DIM };
  return {
    name: "peer-decode",
    command: (python) => [python, sdpaScriptPath, "--device", "cpu"],
    request: {
      op: "prepare",
      backend: "flash",
      problem: { direction: "forward", dtype, mask: "full", ...problem },
    },
    sample: (baseline) => sampleBaseline(baseline, "flash"),
  };
}

function createOnnxRuntimeBaseline({ queries, keys: n, numHeads, numKvHeads }: DecodeProblem): DecodeBaseline {
  return {
    name: "peer-onnx.decode",
    command: (python) => [python, onnxScriptPath],
    request: { op: "prepare", what: "decode", problem: { numHeads, numKvHeads, queries, n, d: HEAD_DIM } },
    sample: (baseline) => sampleBaseline(baseline),
  };
}

function createBaselineComparisonCase(problem: DecodeProblem, baselineProgram: DecodeBaseline): BenchmarkCase {
  const { queries, keys, numHeads } = problem;
  const name = `${baselineProgram.name}.${formatName(problem)}`;
  return {
    names: [name],
    async run({ repetitions, python }) {
      using baseline = new BaselineProcess(baselineProgram.command(python!));
      await baseline.request(baselineProgram.request);
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      const timeOnce = prepare(ctx, problem);
      await timeOnce();
      const turns = await sampleInTurns(repetitions, await timeOnce(), [timeOnce, baselineProgram.sample(baseline)]);
      const timings = {
        ownSeconds: turns.map(([ownSample]) => ownSample!.warmSeconds),
        baselineSeconds: turns.map(([, baselineSample]) => baselineSample!.warmSeconds),
      };
      return [createBaselineRow(name, 4 * numHeads * queries * keys * HEAD_DIM, timings)];
    },
  };
}
