import {
  type Device,
  type DType,
  fromArray,
  type GroupCastPlan,
  type ProcessGroup,
  type RowRange,
  scope,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { expect, test } from "vitest";
import { world } from "../src/index.ts";

/** Returns a generator of uniform numbers in [0, 1) that is independent of the suite's reference. */
function createUniformGenerator(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

interface RandomPlan {
  readonly plan: GroupCastPlan;
  readonly rows: number;
  /** List of row indices, as [sender][receiver]. */
  readonly sets: readonly (readonly (readonly number[])[])[];
}

/** Draws a plan in which each other rank requires a row with probability `density`. */
function drawRows(size: number, seed: number, density: number): RandomPlan {
  const [nextUniform, rows] = [createUniformGenerator(seed), 12];
  const sets = Array.from({ length: size }, (_, sender) =>
    Array.from({ length: size }, (_, receiver) =>
      Array.from({ length: rows }, (_, row) => row).filter(() => sender !== receiver && nextUniform() < density),
    ),
  );
  const ranges = sets.map((bySender) => bySender.map(toRanges));
  return { rows, sets, plan: { size, ranges: (sender, receiver) => ranges[sender]![receiver]! } };
}

function toRanges(rows: readonly number[]): RowRange[] {
  const ranges: { start: number; length: number }[] = [];
  for (const row of rows) {
    const lastRange = ranges.at(-1);
    if (lastRange && lastRange.start + lastRange.length === row) lastRange.length++;
    else ranges.push({ start: row, length: 1 });
  }
  return ranges;
}

interface SentMessage {
  readonly source: number;
  readonly destination: number;
  readonly elements: number;
}

/** Records the messages that a group posts. */
function recordMessages(group: ProcessGroup, messages: SentMessage[]): void {
  const postingGroup = group as unknown as {
    post(call: { transfers?: { to?: number; tensor: { size: number } }[] }, label: string): unknown;
  };
  const post = postingGroup.post.bind(group);
  postingGroup.post = (call, label) => {
    for (const { to, tensor } of call.transfers ?? []) {
      if (to !== undefined) messages.push({ source: group.rank, destination: to, elements: tensor.size });
    }
    return post(call, label);
  };
}

interface Ranks extends AsyncDisposable {
  readonly groups: readonly ProcessGroup[];
  readonly devices: readonly Device[];
}

async function openCpuRanks(size: number): Promise<Ranks> {
  const devices = Array.from({ length: size }, () => cpu({ threads: 1 }));
  const contexts = await world(size, { timeout: 20, device: (rank) => devices[rank]! });
  return {
    devices,
    groups: contexts.map((context) => context.world),
    async [Symbol.asyncDispose]() {
      await Promise.all(contexts.map((context) => context.close()));
    },
  };
}

/** Returns the element of row `row` of rank `rank` in plane `plane`. */
const elementAt = (rank: number, plane: number, row: number): number => rank * 64 + plane * 32 + row;
const PLANES = 2;

function createInput(device: Device, rank: number, rows: number, dtype: DType = "float32") {
  const values = Array.from({ length: PLANES * rows }, (_, i) => elementAt(rank, Math.floor(i / rows), i % rows));
  return fromArray(device, values, [PLANES, rows, 1], { dtype });
}

function expectedRows({ sets }: RandomPlan, rank: number): number[] {
  return Array.from({ length: PLANES }, (_, plane) =>
    sets.flatMap((bySender, sender) => bySender[rank]!.map((row) => elementAt(sender, plane, row))),
  ).flat();
}

const countReceivedRows = ({ sets }: RandomPlan, rank: number): number =>
  sets.reduce((sum, bySender) => sum + bySender[rank]!.length, 0);

test("a hierarchical groupCast sends each row once to each other host that requires it", async () => {
  await using ranks = await openCpuRanks(6);
  const hosts = [0, 1, 0, 2, 1, 2];
  for (const [seed, density] of [0.05, 0.3, 0.9].entries()) {
    const randomPlan = drawRows(6, 17 + seed, density);
    const messages: SentMessage[] = [];
    const splitGroups = await Promise.all(ranks.groups.map((group) => group.split(0, `hosts ${seed}`)));
    const outs = splitGroups.map((group, rank) =>
      group.device.empty([PLANES, countReceivedRows(randomPlan, rank), 1], "float32"),
    );
    const works = splitGroups.map((group, rank) => {
      Object.defineProperty(group, "hosts", { value: hosts });
      recordMessages(group, messages);
      using input = createInput(group.device, rank, randomPlan.rows);
      return group.groupCast([outs[rank]!], [input], randomPlan.plan, { hierarchical: true });
    });
    // Both hops have already been posted, so waiting for the works must post no further messages.
    const numMessages = messages.length;
    for (const work of works) work.wait();
    expect(messages).toHaveLength(numMessages);
    for (const [rank, out] of outs.entries())
      expect(Array.from(await out.read())).toEqual(expectedRows(randomPlan, rank));
    const interHostMessages = messages.filter(({ source: from, destination: to }) => hosts[from] !== hosts[to]);
    let expected = 0;
    for (const [sender, bySender] of randomPlan.sets.entries()) {
      for (const host of new Set(hosts)) {
        if (host === hosts[sender]) continue;
        expected += PLANES * new Set(bySender.flatMap((rows, to) => (hosts[to] === host ? rows : []))).size;
      }
    }
    expect(interHostMessages.reduce((sum, { elements }) => sum + elements, 0)).toBe(expected);
    // No rank receives messages with rows that it does not require.
    for (const { source: from, destination: to } of interHostMessages)
      expect(randomPlan.sets[from]![to]!.length).toBeGreaterThan(0);
    const arrivedByRank = outs.map((_, rank) => messages.filter(({ destination: to }) => to === rank));
    expect(
      arrivedByRank.map((messagesToRank) => messagesToRank.reduce((sum, { elements }) => sum + elements, 0)),
    ).toEqual(outs.map((out) => out.size));
    for (const out of outs) out[Symbol.dispose]();
  }
});

test("two groupCasts that are posted in a scope can be waited for outside of it", async () => {
  await using ranks = await openCpuRanks(3);
  const [firstPlan, secondPlan] = [drawRows(3, 5, 0.5), drawRows(3, 6, 0.5)];
  const postedCalls = ranks.groups.map((group, rank) => {
    const outs = [firstPlan, secondPlan].map((plan) =>
      group.device.empty([PLANES, countReceivedRows(plan, rank), 1], "float32"),
    );
    const works = scope(() => {
      const input = createInput(group.device, rank, 12);
      return { both: [firstPlan, secondPlan].map(({ plan }, i) => group.groupCast([outs[i]!], [input], plan)) };
    }).both;
    return { outs, works };
  });
  for (const { works } of postedCalls) for (const work of works) work.wait();
  for (const [rank, { outs }] of postedCalls.entries()) {
    expect(Array.from(await outs[0]!.read())).toEqual(expectedRows(firstPlan, rank));
    expect(Array.from(await outs[1]!.read())).toEqual(expectedRows(secondPlan, rank));
    for (const out of outs) out[Symbol.dispose]();
  }
});

test("one groupCast sends tensors of several dtypes, views, and tensors without elements", async () => {
  await using ranks = await openCpuRanks(3);
  const randomPlan = drawRows(3, 9, 0.5);
  const postedCalls = ranks.groups.map((group, rank) => {
    const rows = countReceivedRows(randomPlan, rank);
    using paddedRows = fromArray(
      group.device,
      Array.from({ length: 2 * PLANES * 12 }, (_, i) =>
        i < PLANES * 12 ? -1 : elementAt(rank, Math.floor(i / 12) - PLANES, i % 12),
      ),
      [2, PLANES, 12, 1],
    );
    using offset = paddedRows.view({ shape: [PLANES, 12, 1], strides: [12, 1, 1], offset: PLANES * 12 });
    using bfloat16Rows = createInput(group.device, rank, 12, "bfloat16");
    using emptyPlanes = group.device.empty([0, 12, 1], "float32");
    const outs = [
      group.device.empty([PLANES, rows, 1], "float32"),
      group.device.empty([PLANES, rows, 1], "bfloat16"),
      group.device.empty([0, rows, 1], "float32"),
    ];
    return { outs, work: group.groupCast(outs, [offset, bfloat16Rows, emptyPlanes], randomPlan.plan) };
  });
  for (const { work } of postedCalls) work.wait();
  for (const [rank, { outs }] of postedCalls.entries()) {
    expect(Array.from(await outs[0]!.read())).toEqual(expectedRows(randomPlan, rank));
    expect(Array.from(await outs[1]!.read())).toEqual(expectedRows(randomPlan, rank));
    for (const out of outs) out[Symbol.dispose]();
  }
});

/** Whether ranges are valid in a plan. */
function isValid(ranges: readonly RowRange[], rows: number): boolean {
  let end = 0;
  for (const { start, length } of ranges) {
    if (!Number.isInteger(start) || !Number.isInteger(length) || length < 1 || start < end) return false;
    end = start + length;
  }
  return end <= rows;
}

test("groupCast rejects exactly the invalid ones of random plans, before anything is posted", async () => {
  await using ranks = await openCpuRanks(2);
  const nextUniform = createUniformGenerator(77);
  const drawRangeField = (): number =>
    [Math.floor(nextUniform() * 7) - 1, 0.5, Number.NaN][nextUniform() < 0.94 ? 0 : nextUniform() < 0.5 ? 1 : 2]!;
  const outcomeCounts = { refused: 0, accepted: 0 };
  const messages: SentMessage[] = [];
  for (const group of ranks.groups) recordMessages(group, messages);
  for (let i = 0; i < 400; i++) {
    const ranges = Array.from({ length: Math.floor(nextUniform() * 3) }, () => ({
      start: drawRangeField(),
      length: drawRangeField(),
    }));
    const plan: GroupCastPlan = {
      size: 2,
      ranges: (sender, receiver) => (sender === 0 && receiver === 1 ? ranges : []),
    };
    const rows = 1 + Math.floor(nextUniform() * 6);
    const numMessagesBefore = messages.length;
    const isValidPlan = isValid(ranges, rows);
    const count = ranges.reduce((sum, { length }) => sum + length, 0);
    const postGroupCast = (rank: number) => {
      const group = ranks.groups[rank]!;
      using input = createInput(group.device, rank, rows);
      using out = group.device.empty([PLANES, isValidPlan && rank === 1 ? count : 0, 1], "float32");
      return group.groupCast([out], [input], plan);
    };
    if (isValidPlan) {
      const works = [postGroupCast(0), postGroupCast(1)];
      for (const work of works) work.wait();
      outcomeCounts.accepted++;
    } else {
      expect(() => postGroupCast(0)).toThrow(/plan\.ranges\(0, 1\)|as in the plan/);
      expect(messages.length).toBe(numMessagesBefore);
      outcomeCounts.refused++;
    }
  }
  expect(outcomeCounts.accepted).toBeGreaterThan(50);
  expect(outcomeCounts.refused).toBeGreaterThan(50);
});

test("a rank that does not call groupCast is reported by a timeout with the operation and its label", async () => {
  const devices = [0, 1, 2].map(() => cpu({ threads: 1 }));
  const contexts = await world(3, { timeout: 0.4, device: (rank) => devices[rank]! });
  const randomPlan = drawRows(3, 21, 1);
  const outs = [0, 1].map((rank) => devices[rank]!.empty([PLANES, countReceivedRows(randomPlan, rank), 1], "float32"));
  for (const [rank, out] of outs.entries()) {
    using input = createInput(devices[rank]!, rank, randomPlan.rows);
    contexts[rank]!.world.groupCast([out], [input], randomPlan.plan, { label: "flex(sp)" }).wait();
  }
  await expect(outs[0]!.read()).rejects.toThrow(/flex\(sp\): timed out after 0\.4 s: .*groupCast #1 \(world\)/);
  await Promise.allSettled(contexts.map((context) => context.close()));
});

test("a trace has groupCast and groupReduce with labels and bytes, and their memory is released", async () => {
  await using ranks = await openCpuRanks(3);
  const randomPlan = drawRows(3, 33, 0.5);
  const allocatedBefore = ranks.devices.map((device) => device.memory().allocated);
  for (const group of ranks.groups) group.startTrace();
  const postedCalls = ranks.groups.map((group, rank) => {
    const input = createInput(group.device, rank, randomPlan.rows);
    const out = group.device.empty([PLANES, countReceivedRows(randomPlan, rank), 1], "float32");
    return { group, input, out, work: group.groupCast([out], [input], randomPlan.plan, { label: "flex(sp)" }) };
  });
  for (const { work } of postedCalls) work.wait();
  const reductions = postedCalls.map(({ group, input, out }) =>
    group.groupReduce([input], [out], randomPlan.plan, { label: "flex(sp)", wire: "bfloat16" }),
  );
  for (const work of reductions) work.wait();
  await Promise.all(ranks.devices.map((device) => device.stream.synchronize()));
  for (const [rank, { group, input, out }] of postedCalls.entries()) {
    const [receivedPlanes, sentPlanes] = [
      countReceivedRows(randomPlan, rank),
      randomPlan.sets[rank]!.flat().length,
    ].map((rows) => PLANES * rows);
    const events = (await group.stopTrace()).filter(({ name }) => name.startsWith("group"));
    const tracedEvents = events.map(({ name, label, bytesSent, bytesReceived }) => ({
      name,
      label,
      bytesSent,
      bytesReceived,
    }));
    expect(tracedEvents).toEqual([
      { name: "groupCast", label: "flex(sp)", bytesSent: 4 * sentPlanes!, bytesReceived: 4 * receivedPlanes! },
      { name: "groupReduce", label: "flex(sp)", bytesSent: 2 * receivedPlanes!, bytesReceived: 2 * sentPlanes! },
    ]);
    input[Symbol.dispose]();
    out[Symbol.dispose]();
    expect(group.device.memory().allocated).toBe(allocatedBefore[rank]);
  }
});
