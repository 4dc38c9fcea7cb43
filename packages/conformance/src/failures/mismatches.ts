import { CollectiveMismatchError, fromArray, type GroupCastPlan, type ProcessGroup, type Tensor } from "@mosaic/core";
import type { Case } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import {
  checkMessage,
  waitForError,
  expectError,
  openTestWorld,
  type Outcome,
  readOutcome,
  type TestWorld,
} from "./test-world.ts";

/** Ranks that call different things. `late`: see `lateNotice`. */
export function mismatchCases(makeWorld: MakeWorld, late: boolean): Case[] {
  return [
    {
      name: "different shapes: both sides are named, with their shapes, on every rank",
      run: () => differentShapes(makeWorld, late),
    },
    ...mismatchedCalls.map((each) => ({
      name: `${each.what} on one rank is a mismatch on all`,
      run: () => oneRankDiffers(makeWorld, each, late),
    })),
  ];
}

async function differentShapes(makeWorld: MakeWorld, late: boolean): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 3 });
  const xs = stage.devices.map((device, rank) => device.empty([2, 8, rank === 2 ? 128 : 100, 64], "float32"));
  const results = stage.devices.map((device) => device.empty([2, 8, 100, 64], "float32"));
  const post = (rank: number): void => {
    const group = stage.groups[rank]!;
    const transfers = [
      { tensor: xs[rank]!, to: (rank + 1) % 3 },
      { tensor: results[rank]!, from: (rank + 2) % 3 },
    ];
    group.sendRecv(transfers, { label: "ring(sp)" }).wait();
    group.barrier().wait();
  };
  const outcomes = late
    ? await Promise.all(results.map((out, rank) => readOutcome(out, () => post(rank))))
    : await afterAllPosted(stage, results, post);
  for (const outcome of outcomes) {
    checkMessage(
      expectError(outcome, CollectiveMismatchError),
      "ring(sp): rank 0 is at sendRecv #1 (world) float32 [2,8,100,64], rank 2 at sendRecv #1 (world) float32 [2,8,128,64]",
    );
  }
}

interface MismatchCase {
  readonly what: string;
  readonly call: (group: ProcessGroup, operands: Operands, odd: boolean) => void;
  readonly mention: string | RegExp;
}

/** `x` is float32, `y` bfloat16, both [6]. */
interface Operands {
  readonly x: Tensor;
  readonly y: Tensor;
}

const mismatchedCalls: readonly MismatchCase[] = [
  {
    what: "another operation",
    call: (group, { x }, odd) => (odd ? group.allReduce(x) : group.barrier()).wait(),
    mention: "barrier #1",
  },
  {
    what: "another reduction",
    call: (group, { x }, odd) => group.allReduce(x, odd ? "max" : "sum").wait(),
    mention: "allReduce #1 (world) max",
  },
  {
    what: "another root",
    call: (group, { x }, odd) => group.broadcast(x, odd ? 1 : 0).wait(),
    mention: "broadcast #1 (world) from rank",
  },
  {
    what: "another dtype",
    call: (group, { x, y }, odd) => group.allReduce(odd ? y : x).wait(),
    mention: "bfloat16 [6]",
  },
  {
    what: "another shape",
    call: (group, { x }, odd) => group.allReduce(odd ? x.reshape([2, 3]) : x).wait(),
    mention: "float32 [2,3]",
  },
  {
    what: "another plan of the same bytes",
    call: (group, { x }, odd) => castToNext(group, x, odd ? 1 : 0),
    mention:
      /groupCast #1 \(world\) float32 \[6,1\], plan [0-9a-f]{8}, rank [12] at groupCast #1 \(world\) float32 \[6,1\], plan [0-9a-f]{8};/,
  },
  {
    what: "a plan by which nothing is sent",
    call: (group, { x }, odd) => castToNext(group, x, odd ? undefined : 0),
    mention: "groupCast #1 (world) float32 [6,1], plan",
  },
  {
    what: "another order",
    call(group, { x, y }, odd) {
      const calls = [() => group.allReduce(x), () => group.broadcast(y, 0)];
      for (const call of odd ? calls.toReversed() : calls) call().wait();
    },
    mention: "allReduce #1",
  },
];

/** Two rows from `start` on to the next rank, or none. */
function castToNext(group: ProcessGroup, x: Tensor, start: number | undefined): void {
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

async function oneRankDiffers(makeWorld: MakeWorld, { call, mention }: MismatchCase, late: boolean): Promise<void> {
  await using stage = await openTestWorld(makeWorld, { size: 3 });
  const xs = stage.devices.map((device) => fromArray(device, [1, 2, 3, 4, 5, 6], [6]));
  const ys = stage.devices.map((device) => fromArray(device, [1, 2, 3, 4, 5, 6], [6], "bfloat16"));
  const post = (rank: number): void => {
    const group = stage.groups[rank]!;
    call(group, { x: xs[rank]!, y: ys[rank]! }, rank === 1);
    group.barrier().wait();
  };
  const outcomes = late
    ? await Promise.all(
        stage.groups.map((group) =>
          waitForError(
            group,
            () => post(group.rank),
            () => group.barrier().wait(),
          ),
        ),
      )
    : await afterAllPosted(stage, xs, post);
  for (const outcome of outcomes) {
    const message = expectError(outcome, CollectiveMismatchError);
    checkMessage(message, mention);
    checkMessage(message, /rank 1\b.*all ranks of a group must call the same collectives in the same order/);
    checkMessage(message, /rank [02]\b/);
  }
}

/** Posts for all ranks while compute is held up: what is posted after a failure would throw already at the call. */
async function afterAllPosted(
  stage: TestWorld,
  tensors: readonly Tensor[],
  post: (rank: number) => void,
): Promise<Outcome[]> {
  const release = await stage.hold(stage.devices);
  for (const group of stage.groups) post(group.rank);
  release();
  return Promise.all(tensors.map((x) => readOutcome(x)));
}
