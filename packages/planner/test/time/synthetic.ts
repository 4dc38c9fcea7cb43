import type { Context, Tensor, TraceEvent, Transfer } from "@mosaic/core";
import type { Profile } from "../../src/index.ts";
import { attentionSeconds } from "../../src/time/kernel-time.ts";

interface KernelDuration {
  readonly lane: "compute" | "communication";
  readonly seconds: number;
  /** Seconds of it in which no core works. */
  readonly latency: number;
}

/**
 * Replaces the clock of contexts: kernels that calibration times are logged instead of run, and traces report what they
 * would take on the machine of a profile, plus `excessSeconds` for each backward. The contexts cannot be used for
 * anything else afterwards.
 */
export function synthesize(contexts: readonly Context[], profile: Profile, excessSeconds = 0): readonly Context[] {
  const logs = contexts.map(() => [] as KernelDuration[]);
  for (const [i, ctx] of contexts.entries()) {
    recordDurations(ctx, profile, logs[i]!);
    if (excessSeconds > 0) {
      ctx.device.kernels.rowDot = () => void logs[i]!.push({ lane: "compute", seconds: excessSeconds, latency: 0 });
    }
    // The first rank is in every measurement, and comes first.
    ctx.startTrace = () => void (i === 0 ? logs : [logs[i]!]).forEach((log) => log.splice(0));
    ctx.stopTrace = async () => createEvents(logs[i]!, computeSlowdown(logs, profile), profile);
  }
  return contexts;
}

function recordDurations(ctx: Context, { kernels: speeds, links }: Profile, log: KernelDuration[]): void {
  const { kernels } = ctx.device;
  const logKernel = (seconds: number): void => void log.push({ lane: "compute", seconds, latency: 0 });
  kernels.attend = (_, q, { k }) => logKernel(attentionSeconds(speeds, "attend", createWork(q, k)));
  kernels.attendBackward = (_, q, __, { k }) => logKernel(attentionSeconds(speeds, "attendBackward", createWork(q, k)));
  kernels.copy = (out) => logKernel(speeds.launch + (8 * out.size) / speeds.bandwidth);
  const { latency, bandwidth } = links["intra-node"];
  const { world } = ctx;
  const sendRecv = world.sendRecv.bind(world);
  world.sendRecv = (transfers: readonly Transfer[]) => {
    const bytes = transfers.reduce((sum, { tensor }) => sum + 4 * tensor.size, 0);
    log.push({ lane: "communication", seconds: bytes / bandwidth, latency });
    return sendRecv(transfers);
  };
}

function createWork(q: Tensor, k: Tensor) {
  const [, numHeads, rows, headDim] = q.shape as [number, number, number, number];
  const keys = k.shape[2]!;
  return { dtype: q.dtype, numHeads, rows, keys, headDim, pairs: rows * keys, interleaved: k.strides[2]! > headDim };
}

/** Returns the slowdown of ranks that share the cores. */
function computeSlowdown(logs: readonly KernelDuration[][], { cores }: Profile): number {
  return Math.max(1, logs.filter((log) => log.length > 0).length / cores!.perNode);
}

function createEvents(log: readonly KernelDuration[], slowdown: number, { cores }: Profile): TraceEvent[] {
  const { efficiency = 1, wait = 0 } = cores!;
  // If kernels run concurrently with messages, ranks wait for each other.
  const isLockstep = new Set(log.map(({ lane }) => lane)).size === 2;
  let now = 0;
  return log.map(({ lane, seconds, latency }) => {
    const start = now;
    const laneSeconds = isLockstep ? seconds / efficiency : seconds;
    const fixedSeconds = isLockstep && lane === "communication" ? wait : latency;
    now += 1e9 * (laneSeconds * slowdown + fixedSeconds);
    return { lane, name: lane, start, end: now };
  });
}
