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

/** Uniform in [0, 1), by a generator of its own: independent of the suite's reference. */
function uniforms(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

interface Drawn {
  readonly plan: GroupCastPlan;
  readonly rows: number;
  /** [sender][receiver]: the rows, one by one. */
  readonly sets: readonly (readonly (readonly number[])[])[];
}

/** Every row is required by each other rank with the probability `density`. */
function drawRows(size: number, seed: number, density: number): Drawn {
  const [next, rows] = [uniforms(seed), 12];
  const sets = Array.from({ length: size }, (_, sender) =>
    Array.from({ length: size }, (_, receiver) =>
      Array.from({ length: rows }, (_, row) => row).filter(() => sender !== receiver && next() < density),
    ),
  );
  const ranges = sets.map((bySender) => bySender.map(toRanges));
  return { rows, sets, plan: { size, ranges: (sender, receiver) => ranges[sender]![receiver]! } };
}

function toRanges(rows: readonly number[]): RowRange[] {
  const ranges: { start: number; length: number }[] = [];
  for (const row of rows) {
    const last = ranges.at(-1);
    if (last && last.start + last.length === row) last.length++;
    else ranges.push({ start: row, length: 1 });
  }
  return ranges;
}

interface Sent {
  readonly from: number;
  readonly to: number;
  readonly elements: number;
}

/** Counts the messages that a group posts. */
function recordMessages(group: ProcessGroup, messages: Sent[]): void {
  const posting = group as unknown as {
    post(call: { transfers?: { to?: number; tensor: { size: number } }[] }, label: string): unknown;
  };
  const post = posting.post.bind(group);
  posting.post = (call, label) => {
    for (const { to, tensor } of call.transfers ?? []) {
      if (to !== undefined) messages.push({ from: group.rank, to, elements: tensor.size });
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

/** Element of row `row` of rank `rank`, in plane `plane`. */
const valueOf = (rank: number, plane: number, row: number): number => rank * 64 + plane * 32 + row;
const PLANES = 2;

function inputOf(device: Device, rank: number, rows: number, dtype: DType = "float32") {
  const values = Array.from({ length: PLANES * rows }, (_, i) => valueOf(rank, Math.floor(i / rows), i % rows));
  return fromArray(device, values, [PLANES, rows, 1], { dtype });
}

function expectedOf({ sets }: Drawn, rank: number): number[] {
  return Array.from({ length: PLANES }, (_, plane) =>
    sets.flatMap((bySender, sender) => bySender[rank]!.map((row) => valueOf(sender, plane, row))),
  ).flat();
}

const receivedRows = ({ sets }: Drawn, rank: number): number => sets.reduce((sum, by) => sum + by[rank]!.length, 0);

test("over hosts a row crosses once to each host that requires it, and is in place on every rank", async () => {
  await using ranks = await openCpuRanks(6);
  const hosts = [0, 1, 0, 2, 1, 2];
  for (const [seed, density] of [0.05, 0.3, 0.9].entries()) {
    const drawn = drawRows(6, 17 + seed, density);
    const messages: Sent[] = [];
    const parts = await Promise.all(ranks.groups.map((group) => group.split(0, `hosts ${seed}`)));
    const outs = parts.map((group, rank) => group.device.empty([PLANES, receivedRows(drawn, rank), 1], "float32"));
    const works = parts.map((group, rank) => {
      Object.defineProperty(group, "hosts", { value: hosts });
      recordMessages(group, messages);
      using input = inputOf(group.device, rank, drawn.rows);
      return group.groupCast([outs[rank]!], [input], drawn.plan, { hierarchical: true });
    });
    // Both hops were posted: nothing is, once the works are waited for.
    const posted = messages.length;
    for (const work of works) work.wait();
    expect(messages).toHaveLength(posted);
    for (const [rank, out] of outs.entries()) expect(Array.from(await out.read())).toEqual(expectedOf(drawn, rank));
    const crossing = messages.filter(({ from, to }) => hosts[from] !== hosts[to]);
    let expected = 0;
    for (const [sender, bySender] of drawn.sets.entries()) {
      for (const host of new Set(hosts)) {
        if (host === hosts[sender]) continue;
        expected += PLANES * new Set(bySender.flatMap((rows, to) => (hosts[to] === host ? rows : []))).size;
      }
    }
    expect(crossing.reduce((sum, { elements }) => sum + elements, 0)).toBe(expected);
    // No rank receives a row that it does not require.
    for (const { from, to } of crossing) expect(drawn.sets[from]![to]!.length).toBeGreaterThan(0);
    const arrived = outs.map((_, rank) => messages.filter(({ to }) => to === rank));
    expect(arrived.map((all) => all.reduce((sum, { elements }) => sum + elements, 0))).toEqual(
      outs.map((out) => out.size),
    );
    for (const out of outs) out[Symbol.dispose]();
  }
});

test("two casts under way, posted in a scope and waited for outside of it", async () => {
  await using ranks = await openCpuRanks(3);
  const [first, second] = [drawRows(3, 5, 0.5), drawRows(3, 6, 0.5)];
  const posted = ranks.groups.map((group, rank) => {
    const outs = [first, second].map((drawn) => group.device.empty([PLANES, receivedRows(drawn, rank), 1], "float32"));
    const works = scope(() => {
      const input = inputOf(group.device, rank, 12);
      return { both: [first, second].map(({ plan }, i) => group.groupCast([outs[i]!], [input], plan)) };
    }).both;
    return { outs, works };
  });
  for (const { works } of posted) for (const work of works) work.wait();
  for (const [rank, { outs }] of posted.entries()) {
    expect(Array.from(await outs[0]!.read())).toEqual(expectedOf(first, rank));
    expect(Array.from(await outs[1]!.read())).toEqual(expectedOf(second, rank));
    for (const out of outs) out[Symbol.dispose]();
  }
});

test("tensors of several dtypes travel together, parts of larger ones, and tensors without elements", async () => {
  await using ranks = await openCpuRanks(3);
  const drawn = drawRows(3, 9, 0.5);
  const posted = ranks.groups.map((group, rank) => {
    const rows = receivedRows(drawn, rank);
    using whole = fromArray(
      group.device,
      Array.from({ length: 2 * PLANES * 12 }, (_, i) =>
        i < PLANES * 12 ? -1 : valueOf(rank, Math.floor(i / 12) - PLANES, i % 12),
      ),
      [2, PLANES, 12, 1],
    );
    using offset = whole.view({ shape: [PLANES, 12, 1], strides: [12, 1, 1], offset: PLANES * 12 });
    using half = inputOf(group.device, rank, 12, "bfloat16");
    using none = group.device.empty([0, 12, 1], "float32");
    const outs = [
      group.device.empty([PLANES, rows, 1], "float32"),
      group.device.empty([PLANES, rows, 1], "bfloat16"),
      group.device.empty([0, rows, 1], "float32"),
    ];
    return { outs, work: group.groupCast(outs, [offset, half, none], drawn.plan) };
  });
  for (const { work } of posted) work.wait();
  for (const [rank, { outs }] of posted.entries()) {
    expect(Array.from(await outs[0]!.read())).toEqual(expectedOf(drawn, rank));
    expect(Array.from(await outs[1]!.read())).toEqual(expectedOf(drawn, rank));
    for (const out of outs) out[Symbol.dispose]();
  }
});

/** Ranges that a plan may not have, or may: decided row by row. */
function isValid(ranges: readonly RowRange[], rows: number): boolean {
  let end = 0;
  for (const { start, length } of ranges) {
    if (!Number.isInteger(start) || !Number.isInteger(length) || length < 1 || start < end) return false;
    end = start + length;
  }
  return end <= rows;
}

test("drawn plans, right and wrong: what is rejected is what may not be, before anything is posted", async () => {
  await using ranks = await openCpuRanks(2);
  const next = uniforms(77);
  const draw = (): number => [Math.floor(next() * 7) - 1, 0.5, Number.NaN][next() < 0.94 ? 0 : next() < 0.5 ? 1 : 2]!;
  const outcomes = { refused: 0, accepted: 0 };
  const messages: Sent[] = [];
  for (const group of ranks.groups) recordMessages(group, messages);
  for (let i = 0; i < 400; i++) {
    const ranges = Array.from({ length: Math.floor(next() * 3) }, () => ({ start: draw(), length: draw() }));
    const plan: GroupCastPlan = {
      size: 2,
      ranges: (sender, receiver) => (sender === 0 && receiver === 1 ? ranges : []),
    };
    const rows = 1 + Math.floor(next() * 6);
    const posting = messages.length;
    const valid = isValid(ranges, rows);
    const count = ranges.reduce((sum, { length }) => sum + length, 0);
    const call = (rank: number) => {
      const group = ranks.groups[rank]!;
      using input = inputOf(group.device, rank, rows);
      using out = group.device.empty([PLANES, valid && rank === 1 ? count : 0, 1], "float32");
      return group.groupCast([out], [input], plan);
    };
    if (valid) {
      const works = [call(0), call(1)];
      for (const work of works) work.wait();
      outcomes.accepted++;
    } else {
      expect(() => call(0)).toThrow(/plan\.ranges\(0, 1\)|as in the plan/);
      expect(messages.length).toBe(posting);
      outcomes.refused++;
    }
  }
  expect(outcomes.accepted).toBeGreaterThan(50);
  expect(outcomes.refused).toBeGreaterThan(50);
});

test("a rank that does not come: the others time out, with operation, caller and position", async () => {
  const devices = [0, 1, 2].map(() => cpu({ threads: 1 }));
  const contexts = await world(3, { timeout: 0.4, device: (rank) => devices[rank]! });
  const drawn = drawRows(3, 21, 1);
  const outs = [0, 1].map((rank) => devices[rank]!.empty([PLANES, receivedRows(drawn, rank), 1], "float32"));
  for (const [rank, out] of outs.entries()) {
    using input = inputOf(devices[rank]!, rank, drawn.rows);
    contexts[rank]!.world.groupCast([out], [input], drawn.plan, { label: "flex(sp)" }).wait();
  }
  await expect(outs[0]!.read()).rejects.toThrow(/flex\(sp\): timed out after 0\.4 s: .*groupCast #1 \(world\)/);
  await Promise.allSettled(contexts.map((context) => context.close()));
});

test("a trace has both operations, with caller and bytes; memory is as before", async () => {
  await using ranks = await openCpuRanks(3);
  const drawn = drawRows(3, 33, 0.5);
  const used = ranks.devices.map((device) => device.memory().allocated);
  for (const group of ranks.groups) group.startTrace();
  const round = ranks.groups.map((group, rank) => {
    const input = inputOf(group.device, rank, drawn.rows);
    const out = group.device.empty([PLANES, receivedRows(drawn, rank), 1], "float32");
    return { group, input, out, work: group.groupCast([out], [input], drawn.plan, { label: "flex(sp)" }) };
  });
  for (const { work } of round) work.wait();
  const reductions = round.map(({ group, input, out }) =>
    group.groupReduce([input], [out], drawn.plan, { label: "flex(sp)", wire: "bfloat16" }),
  );
  for (const work of reductions) work.wait();
  await Promise.all(ranks.devices.map((device) => device.stream.synchronize()));
  for (const [rank, { group, input, out }] of round.entries()) {
    const [received, sent] = [receivedRows(drawn, rank), drawn.sets[rank]!.flat().length].map((rows) => PLANES * rows);
    const events = (await group.stopTrace()).filter(({ name }) => name.startsWith("group"));
    const seen = events.map(({ name, label, bytesSent, bytesReceived }) => ({ name, label, bytesSent, bytesReceived }));
    expect(seen).toEqual([
      { name: "groupCast", label: "flex(sp)", bytesSent: 4 * sent!, bytesReceived: 4 * received! },
      { name: "groupReduce", label: "flex(sp)", bytesSent: 2 * received!, bytesReceived: 2 * sent! },
    ]);
    input[Symbol.dispose]();
    out[Symbol.dispose]();
    expect(group.device.memory().allocated).toBe(used[rank]);
  }
});
