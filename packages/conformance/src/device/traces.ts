import type { Device, TraceEvent } from "@mosaic/core";
import type { Case } from "../case.ts";
import { check, checkEqual } from "../check.ts";
import { normals } from "../oracle/numbers.ts";
import { type MakeDevice, onDevice } from "./on-device.ts";
import { placed } from "./place.ts";

/** What a device records of its work. */
export function traceCases(make: MakeDevice): Case[] {
  return [
    { name: "a trace shows what ran when", run: () => onDevice(make, trace) },
    { name: "records what it ran while it was asked to, and then no more", run: () => onDevice(make, recordsAsked) },
  ];
}

async function trace(device: Device): Promise<void> {
  using x = placed(device, normals(10_000, 1), { shape: [100, 100] });
  using out = device.empty([100, 100], "float32");
  await device.stream.synchronize();
  device.startTrace();
  device.kernels.matmul(out, x, x, false);
  device.kernels.unary("exp", out, out);
  const events = (await device.stopTrace()).filter((event) => event.lane === "compute");
  check(
    events.length === 2,
    `2 kernels ran, ${events.length} were recorded: ${events.map((event) => event.name).join()}`,
  );
  const [first, second] = [events[0]!, events[1]!];
  check(first.start <= first.end && first.end <= second.start && second.start <= second.end, "kernels out of order");
}

async function recordsAsked(device: Device): Promise<void> {
  using x = placed(device, [1, 1], { shape: [2] });
  device.startTrace();
  device.kernels.unary("exp", x, x);
  device.kernels.scalar("mul", x, x, 2);
  const stopped = device.stopTrace();
  device.kernels.fill(x, 1); // after the call, though before its answer
  const events = await stopped;
  check(namesOf(events) === "unary,scalar", `unary and scalar ran, recorded: ${namesOf(events)}`);
  const now = Number(process.hrtime.bigint());
  let before = 0;
  for (const { name, lane, start, end } of events) {
    check(lane === "compute", `${name} on lane ${lane}`);
    check(end >= start && start >= before, `${name} ran from ${start} to ${end}, the one before it until ${before}`);
    check(Math.abs(now - start) < 60e9, `${name} ran ${now - start} ns ago`);
    before = end;
  }
  check((await device.stopTrace()).length === 0, "recorded though nobody asked");
  device.startTrace();
  device.kernels.fill(x, 1);
  const lengths = (await Promise.all([device.stopTrace(), device.stopTrace()])).map(({ length }) => length);
  checkEqual(lengths, [1, 0], "events for the first to ask, and the second");
}

export function namesOf(events: readonly TraceEvent[]): string {
  return events.map(({ name }) => name).join();
}
