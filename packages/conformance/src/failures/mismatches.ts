import { CollectiveMismatchError, fromArray, type GroupCastPlan, type ProcessGroup, type Tensor } from "@mosaic/core";
import type { Case } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import {
  checkMessage,
  waitForError,
  expectError,
  openTestWorld,
  type ReadOutcome,
  readOutcome,
  type TestWorld,
} from "./test-world.ts";

/** Returns cases of ranks whose calls differ. `isNoticeLate`: see `lateNotice`. */
export function mismatchCases(makeWorld: MakeWorld, isNoticeLate: boolean): Case[] {
  return [
    {
      name: "mismatched shapes: the error on every rank reports both ranks and their shapes",
      run: () => checkDifferentShapes(makeWorld, isNoticeLate),
    },
    ...mismatchedCalls.map((each) => ({
      name: `${each.title} on one rank: every rank reports the mismatch`,
      run: () => checkOneRankDiffers(makeWorld, each, isNoticeLate),
    })),
  ];
}

async function checkDifferentShapes(makeWorld: MakeWorld, isNoticeLate: boolean): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 3 });
  const xs = testWorld.devices.map((device, rank) => device.empty([2, 8, rank === 2 ? 128 : 100, 64], "float32"));
  const results = testWorld.devices.map((device) => device.empty([2, 8, 100, 64], "float32"));
  const post = (rank: number): void => {
    const group = testWorld.groups[rank]!;
    const transfers = [
      { tensor: xs[rank]!, to: (rank + 1) % 3 },
      { tensor: results[rank]!, from: (rank + 2) % 3 },
    ];
    group.sendRecv(transfers, { label: "ring(sp)" }).wait();
    group.barrier().wait();
  };
  const outcomes = isNoticeLate
    ? await Promise.all(results.map((out, rank) => readOutcome(out, () => post(rank))))
    : await postAllThenRead(testWorld, results, post);
  for (const outcome of outcomes) {
    checkMessage(
      expectError(outcome, CollectiveMismatchError),
      "ring(sp): rank 0 is at sendRecv #1 (world) float32 [2,8,100,64], rank 2 at sendRecv #1 (world) float32 [2,8,128,64]",
    );
  }
}

interface MismatchCase {
  readonly title: string;
  readonly call: (group: ProcessGroup, operands: Operands, isMismatchedRank: boolean) => void;
  readonly expectedText: string | RegExp;
}

/** `x` is float32, `y` bfloat16, both [6]. */
interface Operands {
  readonly x: Tensor;
  readonly y: Tensor;
}

const mismatchedCalls: readonly MismatchCase[] = [
  {
    title: "mismatched operations",
    call: (group, { x }, isMismatchedRank) => (isMismatchedRank ? group.allReduce(x) : group.barrier()).wait(),
    expectedText: "barrier #1",
  },
  {
    title: "mismatched reductions",
    call: (group, { x }, isMismatchedRank) => group.allReduce(x, isMismatchedRank ? "max" : "sum").wait(),
    expectedText: "allReduce #1 (world) max",
  },
  {
    title: "mismatched roots",
    call: (group, { x }, isMismatchedRank) => group.broadcast(x, isMismatchedRank ? 1 : 0).wait(),
    expectedText: "broadcast #1 (world) from rank",
  },
  {
    title: "mismatched dtypes",
    call: (group, { x, y }, isMismatchedRank) => group.allReduce(isMismatchedRank ? y : x).wait(),
    expectedText: "bfloat16 [6]",
  },
  {
    title: "mismatched shapes",
    call: (group, { x }, isMismatchedRank) => group.allReduce(isMismatchedRank ? x.reshape([2, 3]) : x).wait(),
    expectedText: "float32 [2,3]",
  },
  {
    title: "mismatched counts",
    call(group, { x }, isMismatchedRank) {
      // With both counts, some messages between the first two ranks have the same size.
      const counts = isMismatchedRank ? [2, 1, 3] : [2, 2, 2];
      using out = group.device.empty([counts[group.rank]!], "float32");
      group.reduceScatter(out, x, "sum", { counts }).wait();
    },
    expectedText:
      /reduceScatter #1 \(world\) sum float32 \[6\], counts ([0-9a-f]{8}).*, rank [12] at reduceScatter #1 \(world\) sum float32 \[6\], counts (?!\1)/,
  },
  {
    title: "counts",
    call(group, { x }, isMismatchedRank) {
      using out = group.device.empty([6], "float32");
      const counts = { send: [2, 2, 2], receive: [2, 2, 2] };
      group.allToAll(out, x, isMismatchedRank ? counts : undefined).wait();
    },
    expectedText: "allToAll #1 (world) float32 [6] by counts",
  },
  {
    title: "mismatched plans with the same byte count",
    call: (group, { x }, isMismatchedRank) => groupCastToNextRank(group, x, isMismatchedRank ? 1 : 0),
    expectedText:
      /groupCast #1 \(world\) float32 \[6,1\], plan [0-9a-f]{8}, rank [12] at groupCast #1 \(world\) float32 \[6,1\], plan [0-9a-f]{8};/,
  },
  {
    title: "a plan without transfers",
    call: (group, { x }, isMismatchedRank) => groupCastToNextRank(group, x, isMismatchedRank ? undefined : 0),
    expectedText: "groupCast #1 (world) float32 [6,1], plan",
  },
  {
    title: "mismatched order",
    call(group, { x, y }, isMismatchedRank) {
      const calls = [() => group.allReduce(x), () => group.broadcast(y, 0)];
      for (const call of isMismatchedRank ? calls.toReversed() : calls) call().wait();
    },
    expectedText: "allReduce #1",
  },
];

/** Sends two rows from `start` on to the next rank, or none if `start` is undefined. */
function groupCastToNextRank(group: ProcessGroup, x: Tensor, start: number | undefined): void {
  const { size } = group;
  const rows = start === undefined ? 0 : 2;
  const plan: GroupCastPlan = {
    size,
    ranges: (sender, receiver) =>
      rows > 0 && receiver === (sender + 1) % size ? [{ start: start!, length: rows }] : [],
  };
  using input = x.view({ shape: [6, 1], strides: [1, 1] });
  using out = group.device.empty([rows, 1], "float32");
  group.groupCast([out], [input], plan).wait();
}

async function checkOneRankDiffers(
  makeWorld: MakeWorld,
  { call, expectedText }: MismatchCase,
  isNoticeLate: boolean,
): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 3 });
  const xs = testWorld.devices.map((device) => fromArray(device, [1, 2, 3, 4, 5, 6], [6]));
  const ys = testWorld.devices.map((device) => fromArray(device, [1, 2, 3, 4, 5, 6], [6], { dtype: "bfloat16" }));
  const post = (rank: number): void => {
    const group = testWorld.groups[rank]!;
    call(group, { x: xs[rank]!, y: ys[rank]! }, rank === 1);
    group.barrier().wait();
  };
  const outcomes = isNoticeLate
    ? await Promise.all(
        testWorld.groups.map((group) =>
          waitForError(
            group,
            () => post(group.rank),
            () => group.barrier().wait(),
          ),
        ),
      )
    : await postAllThenRead(testWorld, xs, post);
  for (const outcome of outcomes) {
    const message = expectError(outcome, CollectiveMismatchError);
    checkMessage(message, expectedText);
    checkMessage(message, /rank 1\b.*all ranks of a group must call the same collectives in the same order/);
    checkMessage(message, /rank [02]\b/);
  }
}

/** Posts for all ranks while their streams are blocked, because a call after a failure would throw at once. */
async function postAllThenRead(
  testWorld: TestWorld,
  tensors: readonly Tensor[],
  post: (rank: number) => void,
): Promise<ReadOutcome[]> {
  const release = await testWorld.blockDevices(testWorld.devices);
  for (const group of testWorld.groups) post(group.rank);
  release();
  return Promise.all(tensors.map((x) => readOutcome(x)));
}
