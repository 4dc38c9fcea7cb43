import {
  ClosedError,
  type CollectiveOptions,
  DisposedError,
  type DType,
  DTypeError,
  type GroupCastPlan,
  OptionError,
  type ProcessGroup,
  type ReduceOp,
  type Shape,
  ShapeError,
  type Tensor,
  type Work,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { local, world } from "../src/index.ts";
import { TestDevice } from "./device.ts";
import { openRanks } from "./ranks.ts";
import { tensor } from "./values.ts";

test("invalid operands are rejected before anything is sent, and the group remains usable", async () => {
  await using ranks = await openRanks(2);
  const [group] = ranks.groups;
  const [device, otherDevice] = ranks.devices;
  const x = tensor(device!, [1, 2, 3, 4, 5, 6], [2, 3]);
  const disposedTensor = device!.empty([1], "float32");
  disposedTensor[Symbol.dispose]();
  const bfloat16Tensor = device!.empty([6], "bfloat16");
  const pairTensor = device!.empty([2], "float32");
  const otherDeviceTensor = otherDevice!.empty([6], "float32");
  const invalidCalls: [() => unknown, new (...args: never[]) => Error, RegExp][] = [
    [() => group!.allReduce(disposedTensor), DisposedError, /rank 0: allReduce \(world\)/],
    [
      () => group!.allReduce(x.transpose(0, 1)),
      ShapeError,
      /contiguous.*\[3,2\] with strides \[1,3\].*call contiguous/,
    ],
    [() => group!.allReduce(otherDeviceTensor), OptionError, /cpu:0 of a different Device instance/],
    [() => group!.allReduce(x, "median" as ReduceOp), OptionError, /sum, mean or max.*median/],
    [() => group!.allGather(bfloat16Tensor, x), DTypeError, /out with the dtype of input, float32.*bfloat16/],
    [() => group!.allGather(x, x), ShapeError, /input with 3 elements/],
    [() => group!.allGather(x, x, { counts: [3] }), ShapeError, /2 counts/],
    [() => group!.allGather(x, x, { counts: [7, -1] }), ShapeError, /integers/],
    [
      () => group!.reduceScatter(x, tensor(device!, [1, 2, 3], [3])),
      ShapeError,
      /divisible by the group size.*3.*counts/,
    ],
    [
      () => group!.allToAll(x, x, { send: [2, 4], receive: [3, 3] }),
      OptionError,
      /receive\[\d\] to match send\[\d\], 2 elements.*3/,
    ],
    [() => group!.allGather(pairTensor, pairTensor.slice(0, 1, 2)), ShapeError, /this rank's shard in place.*overlap/],
    [() => group!.reduceScatter(pairTensor.slice(0, 1, 2), pairTensor), ShapeError, /in place, received.*overlap/],
    [
      () => group!.allToAll(pairTensor, pairTensor),
      ShapeError,
      /separate memory, received overlapping tensors \[2\] and \[2\]/,
    ],
    [
      () =>
        group!.sendRecv([
          { tensor: pairTensor, to: 1 },
          { tensor: pairTensor.slice(0, 1, 2), from: 1 },
        ]),
      ShapeError,
      /receive buffers that do not overlap any other transfer of the batch/,
    ],
    [
      () => group!.allGather(x, pairTensor, { counts: [2, 3] }),
      ShapeError,
      /allGather \(world\): expected out with 5 elements, received \[2,3\], 6 elements/,
    ],
    [
      () => group!.reduceScatter(pairTensor, x, "sum", { counts: [2, 5] }),
      ShapeError,
      /reduceScatter \(world\): expected input with 7 elements, received \[2,3\], 6 elements/,
    ],
    [
      () => group!.reduceScatter(pairTensor, x, "sum", { counts: [4, 2] }),
      ShapeError,
      /expected out with 4 elements, received \[2\], 2 elements/,
    ],
    [
      () => group!.allToAll(pairTensor, x, { send: [1, 4], receive: [1, 1] }),
      ShapeError,
      /allToAll \(world\): expected input with 5 elements, received \[2,3\], 6 elements/,
    ],
    [
      () => group!.allToAll(pairTensor, x, { send: [1, 5], receive: [1, 2] }),
      ShapeError,
      /expected out with 3 elements, received \[2\], 2 elements/,
    ],
    [() => group!.broadcast(x, 2), OptionError, /a rank from 0 to 1.*2/],
    [() => group!.broadcast(x, 0.5), OptionError, /a rank from 0 to 1/],
    [() => group!.sendRecv([{ tensor: x, to: -1 }]), OptionError, /a rank from 0 to 1/],
    [() => group!.sendRecv([{ tensor: x, to: 0 }]), ShapeError, /itself.*float32 \[2,3\].*none/],
    [
      () => group!.sendRecv([{ tensor: x, to: 1, from: 1 }]),
      OptionError,
      /rank 0: sendRecv \(world\): expected transfers \{ tensor, to \} or \{ tensor, from \}, received an object with/,
    ],
    [
      () => group!.allGather(x, tensor(device!, [1, 2, 3], [3]), { count: [2, 4] } as object),
      OptionError,
      /rank 0: allGather \(world\): expected options among counts, label, received "count"/,
    ],
    [() => group!.allToAll(x, x, { counts: [3, 3] } as object), OptionError, /among send, receive, label.*"counts"/],
    [() => group!.allReduce(x, "sum", { lable: "loss" } as object), OptionError, /options among label.*"lable"/],
    [() => group!.recordCall(""), OptionError, /recordCall \(world\): expected a description of the call, received ""/],
    [() => group!.recordCall(3 as never), OptionError, /expected a description of the call, received 3/],
    [() => group!.barrier({ label: 5 } as object), OptionError, /barrier \(world\): label: expected a string.*5/],
    [
      () => group!.allGather(x, tensor(device!, [1, 2, 3], [3]), { counts: Int32Array.of(3, 3) } as object),
      OptionError,
      /counts: expected an array.*Int32Array/,
    ],
    [
      () => group!.sendRecv([{ tensor: disposedTensor, from: 1 }], { label: "ring(sp)" }),
      DisposedError,
      /^ring\(sp\), rank 0: sendRecv \(world\)/,
    ],
  ];
  for (const [call, kind, message] of invalidCalls) {
    expect(call).toThrow(kind);
    expect(call).toThrow(message);
  }
  await expect(group!.split(1.5)).rejects.toThrow(OptionError);
  await expect(group!.split(0, 5 as never)).rejects.toThrow(
    /split \(world\): expected a name that is a string, received 5/,
  );
  const y = tensor(otherDevice!, [1, 1, 1, 1, 1, 1], [2, 3]);
  group!.allReduce(x).wait();
  ranks.groups[1]!.allReduce(y).wait();
  expect(Array.from(await y.read())).toEqual([2, 3, 4, 5, 6, 7]);
});

test("groupCast and groupReduce reject tensors that do not fit the plan, or one another, before anything is sent", async () => {
  await using ranks = await openRanks(2);
  const [group] = ranks.groups;
  // Rank 0 sends rows 1 and 2 of at least 3, and receives 1 row.
  const plan: GroupCastPlan = {
    size: 2,
    ranges: (sender, receiver) => (sender === receiver ? [] : [{ start: 1 - sender, length: 2 - sender }]),
  };
  const empty = (shape: Shape, dtype: DType = "float32"): Tensor => ranks.devices[0]!.empty(shape, dtype);
  const [input, out] = [empty([2, 3, 4]), empty([2, 1, 4])];
  const cast = (outputs: readonly Tensor[], inputs: readonly Tensor[]) => () => group!.groupCast(outputs, inputs, plan);
  const reduce = (outputs: readonly Tensor[], inputs: readonly Tensor[]) => () =>
    group!.groupReduce(outputs, inputs, plan);
  const invalidCalls: [() => unknown, new (...args: never[]) => Error, RegExp][] = [
    [cast([out], [empty([2, 2, 4])]), ShapeError, /groupCast \(world\): expected input\[0\] with at least 3 rows/],
    [
      cast([empty([2, 2, 4])], [input]),
      ShapeError,
      /expected out\[0\] with 1 rows, as in the plan, received \[2,2,4\]/,
    ],
    [reduce([input], [empty([2, 2, 4])]), ShapeError, /groupReduce \(world\): expected input\[0\] with 1 rows/],
    [reduce([empty([2, 2, 4])], [out]), ShapeError, /expected out\[0\] with at least 3 rows/],
    [
      cast([empty([2, 1, 5])], [input]),
      ShapeError,
      /tensor 0: expected out and input .* except for rows, received \[2,1,5\] and \[2,3,4\]/,
    ],
    [cast([empty([2, 4])], [input]), ShapeError, /same shape except for rows, received \[2,4\] and \[2,3,4\]/],
    [cast([empty([2, 1, 4, 1])], [input]), ShapeError, /same shape except for rows, received \[2,1,4,1\] and/],
    [cast([empty([3])], [empty([3])]), ShapeError, /same shape except for rows, received \[3\] and \[3\]/],
    [cast([empty([2, 1, 4], "bfloat16")], [input]), DTypeError, /tensor 0: expected out with the dtype of input/],
    [reduce([empty([3, 4], "bfloat16")], [empty([1, 4], "bfloat16")]), DTypeError, /tensors of float32/],
    [cast([out, out], [input]), OptionError, /non-empty arrays of the same length/],
    [cast([], []), OptionError, /non-empty arrays of the same length/],
    [cast([out, out], [input, input]), ShapeError, /receive buffers that do not overlap/],
  ];
  for (const [call, kind, message] of invalidCalls) {
    expect(call).toThrow(kind);
    expect(call).toThrow(message);
  }
  expect(group!.traffic().messagesSent).toBe(0);
});

test("every collective is traced with its label, by default the name of the group", async () => {
  await using ranks = await openRanks(2);
  const calls: readonly ((group: ProcessGroup, device: TestDevice, options?: CollectiveOptions) => Work)[] = [
    (group, device, options) => group.allGather(device.empty([2], "float32"), device.empty([1], "float32"), options),
    (group, device, options) =>
      group.reduceScatter(device.empty([1], "float32"), device.empty([2], "float32"), "sum", options),
    (group, device, options) => group.allReduce(device.empty([1], "float32"), "sum", options),
    (group, device, options) => group.allToAll(device.empty([2], "float32"), device.empty([2], "float32"), options),
    (group, device, options) => group.broadcast(device.empty([1], "float32"), 0, options),
    (group, _, options) => group.barrier(options),
    (group, device, options) =>
      group.sendRecv(
        [
          { tensor: device.empty([1], "float32"), to: 1 - group.rank },
          { tensor: device.empty([1], "float32"), from: 1 - group.rank },
        ],
        options,
      ),
  ];
  for (const options of [undefined, { label: "step 3" }]) {
    const traces = await Promise.all(
      ranks.groups.map(async (group, rank) => {
        group.startTrace();
        for (const call of calls) call(group, ranks.devices[rank]!, options).wait();
        await ranks.devices[rank]!.stream.synchronize();
        return await group.stopTrace();
      }),
    );
    for (const events of traces)
      expect(events.map(({ label }) => label)).toEqual(calls.map(() => options?.label ?? "world"));
  }
});

test("a rank may send to itself", async () => {
  await using ranks = await openRanks(2);
  const [group] = ranks.groups;
  const x = tensor(ranks.devices[0]!, [1, 2, 3], [3]);
  const y = ranks.devices[0]!.empty([3], "float32");
  group!
    .sendRecv([
      { tensor: y, from: 0 },
      { tensor: x, to: 0 },
    ])
    .wait();
  expect(Array.from(await y.read())).toEqual([1, 2, 3]);
  expect(group!.traffic().bytesSent).toBe(0);
});

test("world() rejects invalid sizes, device types, meshes and timeouts", async () => {
  const device = () => new TestDevice();
  for (const size of [0, 1.5, Number.NaN, undefined, "2"]) {
    const received = typeof size === "string" ? `"${size}"` : String(size);
    await expect(world(size as number, { device })).rejects.toThrow(
      `world: size: expected an integer number of ranks ≥ 1, received ${received}`,
    );
  }
  await expect(world(2, { device: () => new TestDevice("cuda") })).rejects.toThrow(/type cpu.*cuda/);
  await expect(world(4, { device, mesh: { sp: 3 } })).rejects.toThrow(ShapeError);
  await expect(world(2, { device, timeout: -1 })).rejects.toThrow(OptionError);
});

test("local() rejects a connection without the variables of a job, and names mosaic-run", async () => {
  using device = new TestDevice();
  const originalEnv = { MASTER_PORT: process.env.MASTER_PORT, MOSAIC_RUN_ID: process.env.MOSAIC_RUN_ID };
  delete process.env.MASTER_PORT;
  delete process.env.MOSAIC_RUN_ID;
  try {
    await expect(local().connect({ device, rank: 0, size: 2 })).rejects.toThrow(/mosaic-run/);
  } finally {
    for (const [name, value] of Object.entries(originalEnv)) if (value !== undefined) process.env[name] = value;
  }
});

test("local() and world() reject devices of another type and more than 1024 ranks", async () => {
  using device = new TestDevice();
  using otherDevice = new TestDevice("cuda");
  await expect(local().connect({ device: otherDevice, rank: 0, size: 1 })).rejects.toThrow(
    /local collectives: .*type cpu.*cuda/,
  );
  const tooManyRanks = "local collectives: expected at most 1024 ranks, received 1025; use symbolicWorld";
  await expect(local().connect({ device, rank: 0, size: 1025 })).rejects.toThrow(tooManyRanks);
  await expect(world(1025, { device: () => device })).rejects.toThrow(tooManyRanks);
});

test("local() rejects unknown options and invalid values", () => {
  expect(() => local({ timeout: 5 } as object)).toThrow(
    /local: expected options among name, connectTimeout, received "timeout"/,
  );
  expect(() => local({ connectTimeout: 0 })).toThrow(/local: connectTimeout: expected seconds/);
  expect(() => local({ connectTimeout: Number.NaN })).toThrow(OptionError);
  expect(() => local({ name: 5 } as object)).toThrow(/local: name: expected a string, received 5/);
});

test("local() connects a single rank without other processes", async () => {
  using device = new TestDevice();
  const group = await local().connect({ device, rank: 0, size: 1 });
  const x = tensor(device, [1, 2], [2]);
  group.allReduce(x).wait();
  group.barrier().wait();
  expect(Array.from(await x.read())).toEqual([1, 2]);
  await group[Symbol.asyncDispose]();
  expect(() => group.barrier()).toThrow(ClosedError);
});
