import { expect, test } from "vitest";
import { openRanks } from "./ranks.ts";
import { tensor } from "./values.ts";

test("a collective begins after earlier compute, and later compute begins after it", async () => {
  await using ranks = await openRanks(2);
  const x = ranks.devices.map((device) => device.empty([1], "float32"));
  const releaseStream = ranks.devices[0]!.hold();
  // The collective must read x after the earlier write, and the later write must wait for the collective.
  ranks.devices[0]!.write(x[0]!, [5]);
  ranks.devices[1]!.write(x[1]!, [6]);
  ranks.groups.forEach((group, rank) => group.broadcast(x[rank]!, 0).wait());
  ranks.devices[0]!.write(x[0]!, [7]);
  releaseStream();
  expect(Array.from(await x[1]!.read())).toEqual([5]);
  expect(Array.from(await x[0]!.read())).toEqual([7]);
});

test("communication proceeds while the compute stream is busy", async () => {
  await using ranks = await openRanks(2);
  const xs = ranks.devices.map((device, rank) => tensor(device, [rank + 1], [1]));
  const works = ranks.groups.map((group, rank) => group.allReduce(xs[rank]!));
  const releases = ranks.devices.map((device) => device.hold());
  // The held work was submitted after the collective. If the collective waited for it, this would never resolve.
  const split = await Promise.all(ranks.groups.map((group) => group.split(0)));
  expect(split[0]!.traffic().bytesSent).toBe(0);
  expect(ranks.groups[0]!.traffic().bytesSent).toBe(4);
  for (const release of releases) release();
  for (const work of works) work.wait();
  expect(Array.from(await xs[0]!.read())).toEqual([3]);
});

test("operands that are disposed stay allocated until wait() is called", async () => {
  await using ranks = await openRanks(2);
  const [device] = ranks.devices;
  const xs = ranks.devices.map((rankDevice, rank) => tensor(rankDevice, [rank + 1], [1]));
  const releaseStream = device!.hold();
  const works = ranks.groups.map((group, rank) => group.allReduce(xs[rank]!));
  xs[0]![Symbol.dispose]();
  expect(device!.allocated).toBe(4);
  works[0]!.wait();
  expect(device!.allocated).toBe(0);
  works[0]!.wait();
  works[1]!.wait();
  releaseStream();
  expect(Array.from(await xs[1]!.read())).toEqual([3]);
});

test("operands of a collective that is never waited for are released by a later collective", async () => {
  await using ranks = await openRanks(2);
  const [device] = ranks.devices;
  ranks.groups.forEach((group, rank) => {
    using x = tensor(ranks.devices[rank]!, [1], [1]);
    group.allReduce(x);
  });
  expect(device!.allocated).toBe(4);
  // A split resolves after everything posted before it.
  await Promise.all(ranks.groups.map((group) => group.split(0)));
  for (const group of ranks.groups) group.barrier().wait();
  expect(device!.allocated).toBe(0);
});

test("a trace has only the collectives of its period, with their times, labels and bytes", async () => {
  await using ranks = await openRanks(2);
  const runCalls = async () => {
    const xs = ranks.devices.map((device) => tensor(device, [1, 2, 3], [3]));
    ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!, "sum", { label: "gradients" }).wait());
    ranks.groups.forEach((group, rank) => group.broadcast(xs[rank]!, 0).wait());
    await Promise.all(xs.map((x) => x.read()));
  };
  await runCalls();
  const timeBefore = Number(process.hrtime.bigint());
  for (const group of ranks.groups) group.startTrace();
  await runCalls();
  const [firstTrace, secondTrace] = await Promise.all(ranks.groups.map((group) => group.stopTrace()));
  await runCalls();
  expect(
    firstTrace!.map(({ lane, name, label, bytesSent, bytesReceived }) => [lane, name, label, bytesSent, bytesReceived]),
  ).toEqual([
    ["communication", "allReduce", "gradients", 12, 12],
    ["communication", "broadcast", "world", 12, 0],
  ]);
  expect(secondTrace!.map(({ bytesReceived }) => bytesReceived)).toEqual([12, 12]);
  for (const { start, end } of [...firstTrace!, ...secondTrace!]) {
    expect(start).toBeGreaterThan(timeBefore);
    expect(end).toBeGreaterThanOrEqual(start);
  }
  expect(await ranks.groups[0]!.stopTrace()).toEqual([]);
});
