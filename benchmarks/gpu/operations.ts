import * as mosaic from "@mosaic/attention";
import { median } from "../src/case.ts";
import type { BenchmarkContext, Case, Result, Sample } from "./bench.ts";
import { NUM_OPERAND_SETS, timeSteps } from "./contenders.ts";
import { disposeAll, type Sizes } from "./problem.ts";

/** One operation on operands as large as those of attention, timed with Mosaic's kernels and with PyTorch. */
interface Operation {
  /** Bytes read and written, each counted once. For a matrix product, the number of operations. */
  readonly work: (sizes: OperationSizes) => number;
  readonly unit: "bytes/s, read and written" | "operations/s";
  /** Draws operands and returns the function to time, whose argument `turn` selects the operands. */
  readonly prepare: (draw: DrawTensor, sizes: OperationSizes) => (turn: number) => void;
}

type OperationSizes = Sizes & { readonly numProductRows: number };
/** Draws standard normal numbers. The tensors are released when the case ends. */
type DrawTensor = (shape: mosaic.Shape, dtype?: mosaic.DType) => mosaic.Tensor;

/** Returns a function that runs on one of several sets of operands, and disposes the result if there is one. */
function alternate<Operands>(
  draw: () => Operands,
  run: (operands: Operands) => mosaic.Tensor | undefined,
): (turn: number) => void {
  const operandSets = Array.from({ length: NUM_OPERAND_SETS }, draw);
  return (turn) => run(operandSets[turn % NUM_OPERAND_SETS]!)?.dispose();
}

/** Returns an operation on a bfloat16 matrix [tokens, hidden]. */
function createMatrixOperation(bytesPerElement: number, run: (x: mosaic.Tensor) => mosaic.Tensor): Operation {
  return {
    work: ({ tokens, hidden }) => bytesPerElement * tokens * hidden,
    unit: "bytes/s, read and written",
    prepare: (draw, { tokens, hidden }) => alternate(() => draw([tokens, hidden], "bfloat16"), run),
  };
}

const operations: Readonly<Record<string, Operation>> = {
  copy: {
    work: ({ tokens, hidden }) => 8 * tokens * hidden,
    unit: "bytes/s, read and written",
    prepare: (draw, { tokens, hidden }) =>
      alternate(
        () => [draw([tokens, hidden]), draw([tokens, hidden])] as const,
        ([source, target]) => {
          source.device.kernels.copy(target, source);
          return undefined;
        },
      ),
  },
  matmul: {
    work: ({ numProductRows }) => 2 * numProductRows ** 3,
    unit: "operations/s",
    prepare(draw, { numProductRows: rows }) {
      const drawMatrix = (): mosaic.Tensor => draw([rows, rows], "bfloat16");
      return alternate(
        () => [drawMatrix(), drawMatrix()] as const,
        ([a, b]) => mosaic.matmul(a, b),
      );
    },
  },
  cast: {
    work: ({ tokens, hidden }) => 6 * tokens * hidden,
    unit: "bytes/s, read and written",
    prepare: (draw, { tokens, hidden }) =>
      alternate(
        () => draw([tokens, hidden]),
        (x) => x.to("bfloat16"),
      ),
  },
  add: createMatrixOperation(6, (x) => x.add(x)),
  gelu: createMatrixOperation(4, (x) => x.gelu()),
  layerNorm: createMatrixOperation(4, (x) => x.layerNorm()),
  softmax: createMatrixOperation(4, (x) => x.softmax()),
  sum: createMatrixOperation(2, (x) => x.sum()),
  sumOfRows: createMatrixOperation(2, (x) => x.sum(1)),
  sumOfColumns: createMatrixOperation(2, (x) => x.sum(0)),
};

const RUNS_PER_SAMPLE = 10;

/** Operations other than attention. The rates of copy and matmul are the limits that attention is compared with. */
export const operationCases: readonly Case[] = Object.entries(operations).map(([name, operation]) => ({
  name: `operation.${name}`,
  part: "operation",
  async run(bench: BenchmarkContext): Promise<Result> {
    const sizes = { ...bench.sizes, numProductRows: countProductRows(bench.sizes) };
    const numRuns = Math.min(RUNS_PER_SAMPLE, bench.effort.maxRuns);
    const baseline = await bench.baseline()?.request<Sample>({ op: "operation", name, sizes, count: numRuns });
    const workPerSecond = (seconds: readonly number[]): number => operation.work(sizes) / median(seconds);
    return {
      case: `operation.${name}`,
      unit: operation.unit,
      mosaic: workPerSecond(await timeOperation(operation, bench, sizes, numRuns)),
      ...(baseline && { torch: workPerSecond(baseline.seconds) }),
    };
  },
}));

/** Returns the rows of a square product with about as much work as the smallest attention, at most 8192. */
function countProductRows({ tokens, hidden }: Sizes): number {
  return 2 ** Math.min(13, Math.floor(Math.log2(tokens * hidden) / 2));
}

async function timeOperation(
  operation: Operation,
  bench: BenchmarkContext,
  sizes: OperationSizes,
  numRuns: number,
): Promise<number[]> {
  await using ctx = await mosaic.init({ device: bench.device, rank: 0, worldSize: 1 });
  const tensors: mosaic.Tensor[] = [];
  const draw: DrawTensor = (shape, dtype = "float32") => {
    const x = mosaic.randn(ctx, shape, { dtype });
    tensors.push(x);
    return x;
  };
  try {
    const run = operation.prepare(draw, sizes);
    const steps = Array.from({ length: numRuns + 1 }, (_, turn) => () => run(turn));
    const timings = await timeSteps(ctx.device, steps);
    return timings.slice(1).map(({ seconds }) => seconds);
  } finally {
    disposeAll(tensors);
  }
}
