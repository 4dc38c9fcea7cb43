import type { DType, GroupCastPlan, ProcessGroup, RowRange, Shape, Tensor } from "@mosaic/core";
import { type Case, check, checkEqual, checkThrows } from "../check.ts";
import { integer, normals, roundTo, uniforms } from "../oracle/numbers.ts";
import type { MakeWorld } from "../world.ts";
import { dtypes, groupRanks, makeTensor, runOnRanks } from "./tensors.ts";

/** Returns cases that compare groupCast and groupReduce bitwise with a reference that copies and adds row by row. */
export function groupCastCases(makeWorld: MakeWorld, size: number): Case[] {
  const createGroupCase = (name: string, body: (group: ProcessGroup) => Promise<void>): Case => ({
    name: `${name}, ${size} ranks`,
    run: () => runOnRanks(makeWorld, size, (ctx) => body(ctx.world)),
  });
  return [
    createGroupCase("groupCast with random plans: values, bytes sent and version counters", checkRandomGroupCasts),
    createGroupCase("groupCast over hosts", checkGroupCastsOverHosts),
    createGroupCase("groupReduce with random plans, in rank order", checkRandomGroupReduces),
    createGroupCase("groupReduce after groupCast multiplies each row by its receiver count", checkReduceAfterGroupCast),
    createGroupCase(
      "groupCast and groupReduce reject mismatched arguments before posting an operation",
      checkInvalidPlans,
    ),
  ];
}

/** A plan, with the number of rows of each rank. */
interface TestPlan {
  readonly plan: GroupCastPlan;
  readonly rows: readonly number[];
}

const MAX_ROWS = 40;

/**
 * Returns the same plan on all ranks. Some ranks have no rows, some pairs exchange none; several receivers share rows.
 */
function randomPlan(size: number, seed: number): TestPlan {
  const nextUniform = uniforms(seed);
  const rows = Array.from({ length: size }, () => (nextUniform() < 0.1 ? 0 : 1 + integer(nextUniform, MAX_ROWS)));
  const rangesBySender = rows.map((count, sender) =>
    rows.map((_, receiver) => (sender === receiver || nextUniform() < 0.2 ? [] : randomRanges(count, nextUniform))),
  );
  return { rows, plan: { size, ranges: (sender, receiver) => rangesBySender[sender]![receiver]! } };
}

function randomRanges(rows: number, nextUniform: () => number): RowRange[] {
  const ranges: RowRange[] = [];
  for (let start = integer(nextUniform, 6); start < rows; ) {
    const length = 1 + integer(nextUniform, Math.min(9, rows - start));
    ranges.push({ start, length });
    // Ranges may be adjacent.
    start += length + integer(nextUniform, 8);
  }
  return ranges;
}

/** Returns a plan that sends no rows, and a plan that sends all rows to all ranks. */
function extremePlans(size: number): TestPlan[] {
  const rows = Array.from({ length: size }, (_, rank) => 3 + rank);
  const allRanges = (sender: number, receiver: number) =>
    sender === receiver ? [] : [{ start: 0, length: rows[sender]! }];
  return [
    { rows, plan: { size, ranges: () => [] } },
    { rows, plan: { size, ranges: allRanges } },
  ];
}

function createTestPlans(size: number): TestPlan[] {
  return [...extremePlans(size), ...Array.from({ length: 4 }, (_, i) => randomPlan(size, 100 * size + i))];
}

/** Shapes of tensors that are sent together: with several planes, with one plane, and without leading axes. */
const createShapes = (rows: number): Shape[] => [
  [2, 3, rows, 4],
  [2, 3, rows, 1],
  [rows, 5],
  [1, rows, 3],
];

/** Returns the values of a rank's tensor i, [.., rows, width]. A row extends over all leading axes. */
function createValues(rank: number, i: number, shape: Shape, dtype: DType): Float64Array {
  return normals(
    shape.reduce((a, b) => a * b, 1),
    7919 * rank + i,
    dtype,
  );
}

/** Lists the rows in ranges that a rank sends to another. */
function listRows(ranges: readonly RowRange[]): number[] {
  return ranges.flatMap(({ start, length }) => Array.from({ length }, (_, i) => start + i));
}

interface RowMatrix {
  readonly values: Float64Array;
  readonly shape: Shape;
}

/** Returns the indices of the elements of one row, over all planes. */
function elementIndices({ shape }: RowMatrix, row: number): number[] {
  const [rows, width] = shape.slice(-2) as [number, number];
  const numPlanes = shape.slice(0, -2).reduce((a, b) => a * b, 1);
  return Array.from(
    { length: numPlanes * width },
    (_, i) => (Math.floor(i / width) * rows + row) * width + (i % width),
  );
}

/** Lists the sender of every row that a rank receives and the row's index on the sender, in order. */
function listReceivedRows(plan: GroupCastPlan, rank: number): [sender: number, row: number][] {
  return Array.from({ length: plan.size }, (_, sender) => sender).flatMap((sender) =>
    listRows(plan.ranges(sender, rank)).map((row): [number, number] => [sender, row]),
  );
}

function computeExpectedGroupCast({ plan, rows }: TestPlan, rank: number, i: number, dtype: DType): RowMatrix {
  const receivedRowList = listReceivedRows(plan, rank);
  const shape = createShapes(receivedRowList.length)[i]!;
  const out = { shape, values: new Float64Array(shape.reduce((a, b) => a * b, 1)) };
  for (const [outRow, [sender, row]] of receivedRowList.entries()) {
    const sourceMatrix = { shape: createShapes(rows[sender]!)[i]!, values: new Float64Array() };
    const values = createValues(sender, i, sourceMatrix.shape, dtype);
    const elements = elementIndices(sourceMatrix, row);
    for (const [e, outIndex] of elementIndices(out, outRow).entries()) out.values[outIndex] = values[elements[e]!]!;
  }
  return out;
}

/** Creates the tensors that this rank sends, one for each shape. */
function createInputs(group: ProcessGroup, rows: number, dtype: DType): Tensor[] {
  return createShapes(rows).map((shape, i) =>
    makeTensor(group, createValues(group.rank, i, shape, dtype), { dtype, shape }),
  );
}

/** Creates receive buffers filled with NaN. */
function createOutputs(group: ProcessGroup, rows: number, dtype: DType): Tensor[] {
  return createShapes(rows).map((shape) => {
    const out = group.device.empty(shape, dtype);
    if (out.size > 0) group.device.kernels.fill(out, Number.NaN);
    return out;
  });
}

function disposeAll(...lists: readonly (readonly Tensor[])[]): void {
  for (const tensor of lists.flat()) tensor[Symbol.dispose]();
}

async function checkGroupCast(
  group: ProcessGroup,
  testPlan: TestPlan,
  dtype: DType,
  isHierarchical: boolean,
): Promise<void> {
  const { rank } = group;
  const input = createInputs(group, testPlan.rows[rank]!, dtype);
  const out = createOutputs(group, listReceivedRows(testPlan.plan, rank).length, dtype);
  const versions = out.map(({ storage }) => storage.version);
  group.groupCast(out, input, testPlan.plan, { label: "test", hierarchical: isHierarchical }).wait();
  for (const [i, tensor] of out.entries()) {
    checkEqual(
      await tensor.read(),
      computeExpectedGroupCast(testPlan, rank, i, dtype).values,
      `tensor ${i}, ${dtype}, rank ${rank}`,
    );
    check(
      tensor.storage.version > versions[i]!,
      `groupCast: expected a version counter > ${versions[i]} of output tensor ${i}, received ${tensor.storage.version}`,
    );
  }
  disposeAll(input, out);
}

async function checkRandomGroupCasts(group: ProcessGroup): Promise<void> {
  const bytesPerRow = { float32: 4, bfloat16: 2, float16: 2 };
  const elementsPerRow = createShapes(1).reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0);
  for (const [i, testPlan] of createTestPlans(group.size).entries()) {
    const dtype = dtypes[i % dtypes.length]!;
    await group.device.stream.synchronize();
    const trafficBefore = group.traffic();
    await checkGroupCast(group, testPlan, dtype, false);
    const trafficAfter = group.traffic();
    const sentRows = groupRanks(group).flatMap((to) => listRows(testPlan.plan.ranges(group.rank, to))).length;
    const expected = [sentRows, listReceivedRows(testPlan.plan, group.rank).length].map(
      (rows) => rows * elementsPerRow * bytesPerRow[dtype],
    );
    const measuredBytes = [
      trafficAfter.bytesSent - trafficBefore.bytesSent,
      trafficAfter.bytesReceived - trafficBefore.bytesReceived,
    ];
    checkEqual(measuredBytes, expected, `bytes sent and received by rank ${group.rank}`);
  }
}

/** Checks that the received values are the same if ranks are assigned to several simulated hosts. */
async function checkGroupCastsOverHosts(group: ProcessGroup): Promise<void> {
  for (const hosts of [2, 3]) {
    const subgroup = await group.split(0, `${hosts} hosts`);
    Object.defineProperty(subgroup, "hosts", { value: groupRanks(subgroup).map((rank) => rank % hosts) });
    for (const testPlan of createTestPlans(subgroup.size)) await checkGroupCast(subgroup, testPlan, "float32", true);
  }
  for (const testPlan of createTestPlans(group.size)) await checkGroupCast(group, testPlan, "bfloat16", true);
}

async function checkRandomGroupReduces(group: ProcessGroup): Promise<void> {
  const { rank } = group;
  for (const [planIndex, { plan, rows }] of createTestPlans(group.size).entries()) {
    const wireDType = planIndex % 2 === 0 ? "float32" : "bfloat16";
    const input = createInputs(group, listReceivedRows(plan, rank).length, "float32");
    const sums = createShapes(rows[rank]!).map((shape, i) => ({
      shape,
      values: createValues(100 + rank, i, shape, "float32"),
    }));
    const out = sums.map(({ values, shape }) => makeTensor(group, values, { dtype: "float32", shape }));
    group.groupReduce(out, input, plan, wireDType === "float32" ? undefined : { wire: wireDType }).wait();
    // Adds the rows of one receiver after another, in rank order, because each addition rounds.
    for (const receiver of groupRanks(group)) {
      const received = listReceivedRows(plan, receiver);
      for (const [i, sum] of sums.entries()) {
        const receivedMatrix = { shape: createShapes(received.length)[i]!, values: new Float64Array() };
        const values = createValues(receiver, i, receivedMatrix.shape, "float32");
        for (const [receivedRow, [sourceRank, row]] of received.entries()) {
          if (sourceRank !== rank) continue;
          const elements = elementIndices(receivedMatrix, receivedRow);
          for (const [e, sumIndex] of elementIndices(sum, row).entries()) {
            sum.values[sumIndex] = Math.fround(sum.values[sumIndex]! + roundTo(values[elements[e]!]!, wireDType));
          }
        }
      }
    }
    for (const [i, { values }] of sums.entries()) {
      checkEqual(await out[i]!.read(), values, `tensor ${i}, ${wireDType} on the wire, rank ${rank}`);
    }
    disposeAll(input, out);
  }
}

async function checkReduceAfterGroupCast(group: ProcessGroup): Promise<void> {
  const { rank } = group;
  for (const { plan, rows } of createTestPlans(group.size)) {
    const numReceivedRows = listReceivedRows(plan, rank).length;
    const shapes = createShapes(rows[rank]!);
    // Integers, so that sums are exact.
    const values = shapes.map((shape, i) => createValues(rank, i, shape, "float32").map((x) => Math.round(16 * x)));
    const x = shapes.map((shape, i) => makeTensor(group, values[i]!, { dtype: "float32", shape }));
    const received = createOutputs(group, numReceivedRows, "float32");
    const sums = shapes.map((shape) =>
      makeTensor(group, new Float64Array(shape.reduce((a, b) => a * b, 1)), { dtype: "float32", shape }),
    );
    group.groupCast(received, x, plan).wait();
    const work = group.groupReduce(sums, received, plan);
    // Tensors may be disposed after the post. The values that are sent and summed remain.
    disposeAll(received);
    work.wait();
    for (const [i, shape] of shapes.entries()) {
      const expected = { shape, values: new Float64Array(values[i]!.length) };
      for (let row = 0; row < rows[rank]!; row++) {
        const receivers = groupRanks(group).filter((to) => listRows(plan.ranges(rank, to)).includes(row)).length;
        for (const e of elementIndices(expected, row)) expected.values[e] = receivers * values[i]![e]!;
      }
      checkEqual(await sums[i]!.read(), expected.values, `tensor ${i}, rank ${rank}`);
    }
    disposeAll(x, sums);
  }
}

async function checkInvalidPlans(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  const createPlan = (ranges: GroupCastPlan["ranges"], ranks = size): GroupCastPlan => ({ size: ranks, ranges });
  const emptyPlan = createPlan(() => []);
  const createPlanToNextRank = (ranges: readonly RowRange[]): GroupCastPlan =>
    createPlan((sender, receiver) => (receiver === (sender + 1) % size ? ranges : []));
  const createTensor = (shape: Shape, dtype: DType = "float32"): Tensor =>
    makeTensor(group, new Float64Array(shape.reduce((a, b) => a * b, 1)), { dtype, shape });
  const [x, emptyTensor, wideTensor, bfloat16Tensor] = [
    createTensor([4, 3]),
    createTensor([0, 3]),
    createTensor([0, 4]),
    createTensor([0, 3], "bfloat16"),
  ];
  const operations = ["groupCast", "groupReduce"] as const;
  for (const op of operations) {
    const [defaultInput, defaultOut] = op === "groupCast" ? [x, emptyTensor] : [emptyTensor, x];
    const post = (plan: GroupCastPlan, out = defaultOut, input = defaultInput): unknown =>
      op === "groupCast" ? group.groupCast([out], [input], plan) : group.groupReduce([input], [out], plan);
    await checkThrows(() => post(createPlan(() => [], size + 1)), "OptionError", /expected a plan for \d+ ranks/);
    await checkThrows(
      () => post(createPlan(() => [{ start: 0, length: 1 }])),
      "OptionError",
      /no ranges from a rank to itself/,
    );
    await checkThrows(() => group[op]([], [], emptyPlan), "OptionError", /non-empty arrays of the same length/);
    await checkThrows(() => group[op]([x], [x], emptyPlan), "ShapeError", /rows, as in the plan|overlap/);
    await checkThrows(
      () => group[op]([wideTensor], [emptyTensor], emptyPlan),
      "ShapeError",
      /same shape except for rows/,
    );
    await checkThrows(() => group[op]([bfloat16Tensor], [emptyTensor], emptyPlan), "DTypeError", /./);
    if (size === 1) continue;
    await checkThrows(() => post(createPlanToNextRank([{ start: 1, length: 0 }])), "OptionError", /length ≥ 1/);
    const overlappingPlan = createPlanToNextRank([
      { start: 1, length: 2 },
      { start: 2, length: 1 },
    ]);
    await checkThrows(() => post(overlappingPlan), "OptionError", /ascending and disjoint/);
    await checkThrows(
      () => post(createPlanToNextRank([{ start: 3, length: 2 }])),
      "ShapeError",
      /rows, as in the plan/,
    );
  }
  await checkThrows(
    () => group.groupReduce([bfloat16Tensor], [bfloat16Tensor.view({})], emptyPlan),
    "DTypeError",
    /float32/,
  );
  // Nothing was posted, so the group remains usable.
  using sumTensor = makeTensor(group, [rank], { dtype: "float32" });
  group.allReduce(sumTensor).wait();
  checkEqual(await sumTensor.read(), [(size * (size - 1)) / 2], "the sum after the rejected calls");
  disposeAll([x, emptyTensor, wideTensor, bfloat16Tensor]);
}
