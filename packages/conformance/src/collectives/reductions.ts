import type { DType, ProcessGroup, ReduceOp } from "@mosaic/core";
import type { Case } from "../case.ts";
import { checkEqual } from "../check.ts";
import { rounded } from "../oracle/numbers.ts";
import { concatenated } from "../backend/shard.ts";
import type { MakeWorld } from "../world.ts";
import { checkHolds, dtypes, everyone, inbox, onRanks, shares, tensorOf, total, valuesOf } from "./ranks.ts";

const ops: readonly ReduceOp[] = ["sum", "mean", "max"];

/** allReduce and reduceScatter: to the last bit, for the order of the sum and its one rounding are promised. */
export function reductionCollectiveCases(makeWorld: MakeWorld, size: number): Case[] {
  return dtypes.flatMap((dtype) =>
    ops.flatMap((op) => [
      {
        name: `allReduce ${op}, ${dtype}, ${size} ranks`,
        run: () => onRanks(makeWorld, size, (ctx) => allReduce(ctx.world, op, dtype)),
      },
      {
        name: `reduceScatter ${op}, ${dtype}, ${size} ranks`,
        run: () => onRanks(makeWorld, size, (ctx) => reduceScatter(ctx.world, op, dtype)),
      },
    ]),
  );
}

async function allReduce(group: ProcessGroup, op: ReduceOp, dtype: DType): Promise<void> {
  for (const length of [0, 1, 31, 5000]) {
    const inputs = everyone(group).map((rank) => valuesOf(rank, length, dtype));
    using x = tensorOf(group, inputs[group.rank]!, { dtype });
    group.allReduce(x, op).wait();
    checkEqual(await x.read(), reduced(inputs, op, dtype), `${length} numbers on rank ${group.rank}`);
  }
}

async function reduceScatter(group: ProcessGroup, op: ReduceOp, dtype: DType): Promise<void> {
  const { rank, size } = group;
  const equal = everyone(group).map(() => 17);
  for (const counts of [equal, shares(size)]) {
    const inputs = everyone(group).map((each) => valuesOf(each, total(counts), dtype));
    using input = tensorOf(group, inputs[rank]!, { dtype });
    using out = inbox(group, counts[rank]!, dtype);
    group.reduceScatter(out, input, op, counts === equal ? undefined : { counts }).wait();
    const start = total(counts.slice(0, rank));
    const expected = reduced(inputs, op, dtype).subarray(start, start + counts[rank]!);
    await checkHolds(out, expected, `shares ${counts.join()}, rank ${rank}`);
    await checkHolds(input, inputs[rank]!, "the input, which stays as it is");
  }
}

/** In rank order, float32 all the way, rounded to the dtype once. */
function reduced(inputs: readonly Float64Array[], op: ReduceOp, dtype: DType): Float64Array {
  return inputs[0]!.map((_, i) => {
    const terms = concatenated(inputs.map((input) => input.subarray(i, i + 1)));
    if (op === "max") return Math.max(...terms);
    const sum = terms.subarray(1).reduce((a, b) => Math.fround(a + b), terms[0]!);
    return rounded(op === "mean" ? Math.fround(sum / terms.length) : sum, dtype);
  });
}
