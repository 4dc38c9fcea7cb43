import { type DType, type ProcessGroup, type ReduceOp, defineOptions, type OptionsOf } from "@mosaic/core";
import { concatenate } from "../backend/shard.ts";
import { type Case, checkEqual } from "../check.ts";
import { roundTo } from "../oracle/numbers.ts";
import type { MakeWorld } from "../world.ts";
import { groupCastCases } from "./casts.ts";
import { messageCases } from "./messages.ts";
import { orderCases } from "./order.ts";
import {
  checkTensorValues,
  dtypes,
  groupRanks,
  makeReceiveBuffer,
  runOnRanks,
  unevenCounts,
  makeTensor,
  sumOfCounts,
  rankValues,
} from "./tensors.ts";
import { checkMakeWorld, worldSizesOption } from "../suite-options.ts";

const reduceOps: readonly ReduceOp[] = ["sum", "mean", "max"];

/**
 * Returns cases of allReduce and reduceScatter, compared bitwise, because the order of the sum and its single rounding
 * are guaranteed.
 */
function reductionCollectiveCases(makeWorld: MakeWorld, size: number): Case[] {
  return dtypes.flatMap((dtype) =>
    reduceOps.flatMap((op) => [
      {
        name: `allReduce ${op}, ${dtype}, ${size} ranks`,
        run: () => runOnRanks(makeWorld, size, (ctx) => checkAllReduce(ctx.world, op, dtype)),
      },
      {
        name: `reduceScatter ${op}, ${dtype}, ${size} ranks`,
        run: () => runOnRanks(makeWorld, size, (ctx) => checkReduceScatter(ctx.world, op, dtype)),
      },
    ]),
  );
}

async function checkAllReduce(group: ProcessGroup, op: ReduceOp, dtype: DType): Promise<void> {
  for (const length of [0, 1, 31, 5000]) {
    const inputs = groupRanks(group).map((rank) => rankValues(rank, length, dtype));
    using x = makeTensor(group, inputs[group.rank]!, { dtype });
    group.allReduce(x, op).wait();
    checkEqual(await x.read(), computeReduction(inputs, op, dtype), `${length} numbers on rank ${group.rank}`);
  }
}

async function checkReduceScatter(group: ProcessGroup, op: ReduceOp, dtype: DType): Promise<void> {
  const { rank, size } = group;
  const equalCounts = groupRanks(group).map(() => 17);
  for (const counts of [equalCounts, unevenCounts(size)]) {
    const inputs = groupRanks(group).map((each) => rankValues(each, sumOfCounts(counts), dtype));
    using input = makeTensor(group, inputs[rank]!, { dtype });
    using out = makeReceiveBuffer(group, counts[rank]!, dtype);
    group.reduceScatter(out, input, op, counts === equalCounts ? undefined : { counts }).wait();
    const start = sumOfCounts(counts.slice(0, rank));
    const expected = computeReduction(inputs, op, dtype).subarray(start, start + counts[rank]!);
    await checkTensorValues(out, expected, `counts ${counts.join()}, rank ${rank}`);
    await checkTensorValues(input, inputs[rank]!, `counts ${counts.join()}, rank ${rank}: input after the call`);
  }
}

/** Reduces in rank order and in float32, and rounds to the dtype once. */
function computeReduction(inputs: readonly Float64Array[], op: ReduceOp, dtype: DType): Float64Array {
  return inputs[0]!.map((_, i) => {
    const terms = concatenate(inputs.map((input) => input.subarray(i, i + 1)));
    if (op === "max") return Math.max(...terms);
    const sum = terms.subarray(1).reduce((a, b) => Math.fround(a + b), terms[0]!);
    return roundTo(op === "mean" ? Math.fround(sum / terms.length) : sum, dtype);
  });
}

export const collectivesSuiteOptions = defineOptions("collectivesSuite", {
  /** Numbers of ranks to test. Default: 1, 2, 3, 4 and 7; for groupCast and groupReduce, 1 to 8. */
  sizes: worldSizesOption,
});
/** Options of `collectivesSuite`. */
export type CollectivesSuiteOptions = OptionsOf<typeof collectivesSuiteOptions>;

/**
 * Returns test cases that every implementation of collectives must pass. They compare each operation bitwise with its
 * definition, for all dtypes and for equal, uneven and empty shares. They check the guaranteed order between messages,
 * and between collectives and compute; groups within groups; and the reported traffic.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { collectivesSuite } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const cases = collectivesSuite((size) => world(size, { device: () => cpu({ threads: 1 }) }), { sizes: [2] });
 * await cases.find(({ name }) => name === "allGather, float32, 2 ranks")!.run();
 * ```
 */
export function collectivesSuite(makeWorld: MakeWorld, options?: CollectivesSuiteOptions): Case[] {
  checkMakeWorld("collectivesSuite", makeWorld);
  const { sizes } = collectivesSuiteOptions.parse(options);
  const collectives = (sizes ?? [1, 2, 3, 4, 7]).flatMap((size) => [
    ...messageCases(makeWorld, size),
    ...gatherCases(makeWorld, size),
    ...reductionCollectiveCases(makeWorld, size),
    ...orderCases(makeWorld, size),
  ]);
  return [...collectives, ...(sizes ?? [1, 2, 3, 4, 5, 6, 7, 8]).flatMap((size) => groupCastCases(makeWorld, size))];
}

/** Returns cases of allGather, allToAll and broadcast, with equal shares and with explicit counts. */
function gatherCases(makeWorld: MakeWorld, size: number): Case[] {
  const collectives = { allGather: checkAllGather, allToAll: checkAllToAll, broadcast: checkBroadcast };
  return dtypes.flatMap((dtype) =>
    Object.entries(collectives).map(([name, body]) => ({
      name: `${name}, ${dtype}, ${size} ranks`,
      run: () => runOnRanks(makeWorld, size, (ctx) => body(ctx.world, dtype)),
    })),
  );
}

async function checkAllGather(group: ProcessGroup, dtype: DType): Promise<void> {
  const equalCounts = groupRanks(group).map(() => 129);
  for (const counts of [equalCounts, unevenCounts(group.size)]) {
    const inputs = counts.map((count, rank) => rankValues(rank, count, dtype));
    using input = makeTensor(group, inputs[group.rank]!, { dtype });
    using out = makeReceiveBuffer(group, sumOfCounts(counts), dtype);
    group.allGather(out, input, counts === equalCounts ? undefined : { counts }).wait();
    await checkTensorValues(out, concatenate(inputs), `counts ${counts.join()} on rank ${group.rank}`);
  }
}

async function checkAllToAll(group: ProcessGroup, dtype: DType): Promise<void> {
  const { rank, size } = group;
  const equalCount = (): number => 11;
  const unevenCount = (from: number, to: number): number => (from + 2 * to) % 4;
  for (const count of [equalCount, unevenCount]) {
    const sendCounts = (from: number) => groupRanks(group).map((to) => count(from, to));
    const sentValues = (from: number) => rankValues(from, sumOfCounts(sendCounts(from)), dtype);
    const sentBlock = (from: number, to: number) => {
      const start = sumOfCounts(sendCounts(from).slice(0, to));
      return sentValues(from).subarray(start, start + count(from, to));
    };
    const receiveCounts = groupRanks(group).map((from) => count(from, rank));
    using input = makeTensor(group, sentValues(rank), { dtype });
    using out = makeReceiveBuffer(group, sumOfCounts(receiveCounts), dtype);
    group
      .allToAll(out, input, count === equalCount ? undefined : { send: sendCounts(rank), receive: receiveCounts })
      .wait();
    await checkTensorValues(
      out,
      concatenate(groupRanks(group).map((from) => sentBlock(from, rank))),
      `rank ${rank} of ${size}`,
    );
  }
}

async function checkBroadcast(group: ProcessGroup, dtype: DType): Promise<void> {
  for (const root of groupRanks(group)) {
    for (const length of [0, 1, 3001]) {
      using x =
        group.rank === root
          ? makeTensor(group, rankValues(root, length, dtype), { dtype })
          : makeReceiveBuffer(group, length, dtype);
      group.broadcast(x, root).wait();
      await checkTensorValues(x, rankValues(root, length, dtype), `${length} numbers from ${root} on ${group.rank}`);
    }
  }
}
