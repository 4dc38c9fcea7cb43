import type { Context, Coordinate, Device, ProcessGroup, Tensor } from "@mosaic/core";
import { check } from "../check.ts";
import type { MakeWorld } from "../world.ts";

/** Ranks of one process, for tests of failures. */
export interface TestWorld extends AsyncDisposable {
  readonly contexts: readonly Context[];
  readonly groups: readonly ProcessGroup[];
  readonly devices: readonly Device[];
  /** Blocks the streams of devices until the returned function is called. */
  blockDevices(devices: readonly Device[]): Promise<() => void>;
  /** Closes all ranks at once. */
  close(): Promise<void>;
}

export interface TestWorldOptions {
  readonly size: number;
  /** Seconds that a collective may take. */
  readonly timeout?: number;
  readonly mesh?: Coordinate;
}

/** Result of a read on one rank: the values or the error. */
export type ReadOutcome = Float32Array | Error;

export async function openTestWorld(
  makeWorld: MakeWorld,
  { size, timeout = 20, ...options }: TestWorldOptions,
): Promise<TestWorld> {
  const contexts = await makeWorld(size, { ...options, timeout, wrapDevice: identityDevice });
  const gates: StreamGate[] = [];
  const close = async (): Promise<void> => {
    await Promise.all(contexts.map((context) => context.close()));
  };
  return {
    contexts,
    groups: contexts.map((context) => context.world),
    devices: contexts.map((context) => context.device),
    close,
    async blockDevices(devices) {
      const gate = await blockStreams(makeWorld, devices);
      gates.push(gate);
      return gate.release;
    },
    async [Symbol.asyncDispose]() {
      for (const gate of gates) gate.release();
      await close();
      for (const gate of gates) await gate.close();
    },
  };
}

interface StreamGate {
  release(): void;
  close(): Promise<void>;
}

/** Blocks streams behind a stream that waits for a barrier. The other rank of that world of two joins it on release. */
async function blockStreams(makeWorld: MakeWorld, devices: readonly Device[]): Promise<StreamGate> {
  const [blockedContext, releasingContext] = (await makeWorld(2, { timeout: 60, wrapDevice: identityDevice })) as [
    Context,
    Context,
  ];
  blockedContext.world.barrier().wait();
  const fence = blockedContext.device.stream.record();
  for (const device of devices) device.stream.wait(fence);
  let isReleased = false;
  return {
    release() {
      if (!isReleased) releasingContext.world.barrier();
      isReleased = true;
    },
    async close() {
      await Promise.all([blockedContext.close(), releasingContext.close()]);
    },
  };
}

function identityDevice(device: Device): Device {
  return device;
}

/** Posts, then reads. Returns the values, or the error of the post or of the read. */
export async function readOutcome(x: Tensor, post: () => void = () => {}): Promise<ReadOutcome> {
  try {
    post();
    return await x.read();
  } catch (error) {
    return error as Error;
  }
}

/** Posts, then calls `resume` until the rank fails. Returns the error. */
export async function waitForError(group: ProcessGroup, post: () => void, resume: () => void = post): Promise<Error> {
  const deadline = performance.now() + 10_000;
  try {
    post();
    while (performance.now() < deadline) {
      await group.device.stream.synchronize();
      resume();
    }
  } catch (error) {
    return error as Error;
  }
  throw new Error(`rank ${group.rank}: expected a failure within 10 s, received none`);
}

/** Returns the message of an outcome, which must be an error of this class. */
export function expectError(outcome: ReadOutcome | undefined, errorClass: new (...args: never[]) => Error): string {
  const received =
    outcome instanceof Error ? `${outcome.name}: ${outcome.message}` : `values ${outcome?.subarray(0, 6).join()}`;
  check(outcome instanceof errorClass, `expected ${errorClass.name}, received ${received}`);
  return outcome.message;
}

export function checkMessage(message: string, expected: string | RegExp): void {
  const isMatch = typeof expected === "string" ? message.includes(expected) : expected.test(message);
  check(isMatch, `expected a message that contains ${expected}, received "${message}"`);
}
