import { environmentFlag } from "@mosaic/core";

// With MOSAIC_STACKS=1, the stack of every collective and kernel call is recorded, so that an error that is reported
// later contains the line of the program that made the call. Otherwise nothing is recorded.

/** Whether calls are recorded. Constant, so that the compiler removes the branches that test it. */
export const areStacksRecorded: boolean = environmentFlag("MOSAIC_STACKS");

/** Number of frames of a stack. A call of a backend in a module has about 20 frames of Mosaic's packages. */
const MAX_FRAMES = 50;
/** Number of collectives whose stacks are kept, of all ranks of this process. */
const MAX_COLLECTIVES = 4096;
/** Number of calls whose stacks are kept for each kernel. */
const MAX_CALLS_PER_KERNEL = 16;
/** Number of different stacks in one error. */
const MAX_STACKS = 4;

/** A recorded stack. `stack` is formatted, and mapped to source lines, when it is first read. */
export interface RecordedCall {
  readonly name: string;
  readonly stack?: string;
}

interface RecordedCollective extends RecordedCall {
  /** The rank in the world. */
  readonly rank: number;
}

const collectives: RecordedCollective[] = [];
let numCollectives = 0;
const kernelCalls = new Map<string, RecordedCall[]>();

/** Captures the stack of a call, without the frames above `caller`. */
export function captureCall(name: string, caller: (...args: never[]) => unknown): RecordedCall {
  const call: RecordedCall = { name };
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = MAX_FRAMES;
  Error.captureStackTrace(call, caller);
  Error.stackTraceLimit = stackTraceLimit;
  return call;
}

/** Records the call of a collective by a rank. Its name is that in native messages, `allReduce #5 (world)`. */
export function recordCollective(name: string, rank: number): void {
  collectives[numCollectives++ % MAX_COLLECTIVES] = Object.assign(captureCall(name, recordCollective), { rank });
}

/** Records the call of a kernel. */
export function recordKernel(name: string): void {
  const calls = kernelCalls.get(name) ?? [];
  kernelCalls.set(name, calls);
  calls.push(captureCall(name, recordKernel));
  if (calls.length > MAX_CALLS_PER_KERNEL) calls.shift();
}

/**
 * Adds the stacks of the calls that the message of an error names, as a chain of causes. `waitingCall` is the call
 * whose promise rejects with the error.
 */
export function addStacks(error: Error, waitingCall?: RecordedCall): void {
  const calls = [...findCollectives(error.message), ...findKernelCalls(error.message)];
  if (waitingCall) calls.push({ title: `${waitingCall.name} was called here`, call: waitingCall });
  const stacks = new Map(calls.map(({ title, call }) => [`${title}\n${listFrames(call)}`, title]));
  let cause: Error | undefined;
  for (const [stack, title] of [...stacks].slice(-MAX_STACKS).reverse()) {
    const each = new Error(title, cause && { cause });
    each.name = "CallStack";
    each.stack = `CallStack: ${stack}`;
    cause = each;
  }
  if (cause) Object.defineProperty(error, "cause", { value: cause, configurable: true, writable: true });
}

interface TitledCall {
  readonly title: string;
  readonly call: RecordedCall;
}

/** Finds the calls that a message names. Titles have the ranks if those of this process made different calls. */
function findCollectives(message: string): TitledCall[] {
  const callsByStack = new Map<string, RecordedCollective[]>();
  for (const call of collectives) {
    if (!message.includes(call.name)) continue;
    const stack = `${call.name}\n${listFrames(call)}`;
    callsByStack.set(stack, [...(callsByStack.get(stack) ?? []), call]);
  }
  const differs = (calls: readonly RecordedCollective[]): boolean =>
    [...callsByStack.values()].some((others) => others !== calls && others[0]!.name === calls[0]!.name);
  return [...callsByStack.values()].map((calls) => {
    const [call] = calls as [RecordedCollective];
    const ranks = calls.map(({ rank }) => rank).join(", ");
    const rankText = differs(calls) ? `, on rank${calls.length > 1 ? "s" : ""} ${ranks}` : "";
    return { title: `${call.name} was called here${rankText}`, call };
  });
}

/** Native code reports a kernel by its name, but not which of its calls failed. */
function findKernelCalls(message: string): TitledCall[] {
  return [...kernelCalls].flatMap(([name, calls]) => {
    if (!new RegExp(`\\b${name}: `).test(message)) return [];
    const isOnlyCall = calls.length === 1;
    const title = isOnlyCall ? `${name} was called here` : `${name} was called here, in one of its last calls`;
    return calls.map((call) => ({ title, call }));
  });
}

function listFrames({ stack = "" }: RecordedCall): string {
  return stack.slice(stack.indexOf("\n") + 1);
}
