import type { QkvGrads, Transfer, Work } from "@mosaic/core";
import { type Chunk, ChunkMemory } from "./memory.ts";
import { around, taker } from "./route.ts";
import { type Circle, longest, messages, type Step } from "./rotate.ts";

/** A step around the ring with room for the gradients of its keys: dk and dv, to add its contributions to. */
export interface CarriedStep extends Step, Pick<QkvGrads, "dk" | "dv"> {}

/** Sums of gradients under way, and what they are to be added to. */
interface Hop {
  readonly work: Work;
  /** For the keys of the next step. */
  readonly onward?: Chunk | undefined;
  /** For this rank's own keys. */
  readonly homeward?: Chunk | undefined;
}

// Slots of memory: contributions of even and of odd steps, the sums that arrive, and those that arrive beside them. The
// last is needed by masks with gaps only: in a full ring nothing comes home before the last hop, which carries nothing on.
const ARRIVING = 2;
const BESIDE = 3;

/**
 * Goes around the ring with the gradients of K and V, in float32. What is added to `dk` and `dv` at a step travels while the
 * next step computes: to the neighbour that works on the same keys then, and from the last that needs them home, into
 * `grads`. The gradients of one's own keys that one computes oneself never travel.
 *
 * A step computes into memory of its own, to which the neighbour's sum is added when both are there. Computing right
 * into the neighbour's sum would save that pass over S·D numbers (of some S²·D), but the neighbour completes it only
 * when this step could begin: no transfer would be hidden behind any compute.
 */
export function* carry(
  circle: Circle,
  grads: Pick<QkvGrads, "dk" | "dv">,
  steps: Iterable<Step>,
): Generator<CarriedStep, void, undefined> {
  const home: Chunk = [grads.dk, grads.dv];
  using memory = new ChunkMemory(home, longest(circle));
  let hop: Hop | undefined;
  try {
    for (const step of steps) {
      const sums = roomFor(step, circle, memory) ?? home;
      const { source, visible, k, v } = step;
      yield { step: step.step, source, visible, k, v, dk: sums[0], dv: sums[1] };
      hop?.work.wait();
      add(sums, hop?.onward);
      add(home, hop?.homeward);
      hop = undefined;
      hop = post(circle, step.step, sums, memory);
    }
  } finally {
    hop?.work.wait();
  }
  add(home, hop?.homeward);
}

/** Zeros to add a step's contributions to; none at home, where they are added at once, and none where there are none. */
function roomFor({ step, source, visible }: Step, { need, group }: Circle, memory: ChunkMemory): Chunk | undefined {
  if (step === 0 || !visible) return undefined;
  const sums = memory.slot(step % 2, need.length(source));
  for (const sum of sums) group.device.kernels.fill(sum, 0);
  return sums;
}

/** Posts the messages that carry the sums of `step` on, in one batch: one chunk leaves at most, two arrive. */
function post(circle: Circle, step: number, sums: Chunk, memory: ChunkMemory): Hop | undefined {
  const { group, need, label } = circle;
  const { rank, size } = group;
  const left = around(rank - 1, size);
  const along = around(rank + step, size); // who worked on this rank's own keys at that step
  const to = taker(need, rank, step);
  const next = around(left - step, size);
  const onward =
    left !== along && taker(need, left, step) === rank ? memory.slot(ARRIVING, need.length(next)) : undefined;
  const homeward =
    taker(need, along, step) === rank ? memory.slot(onward ? BESIDE : ARRIVING, need.length(rank)) : undefined;
  const transfers: Transfer[] = [
    ...(to === undefined ? [] : messages(sums, to)),
    ...(onward ?? []).map((tensor) => ({ tensor, from: left })),
    ...(homeward ?? []).map((tensor) => ({ tensor, from: along })),
  ];
  return transfers.length > 0 ? { work: group.sendRecv(transfers, { label }), onward, homeward } : undefined;
}

function add(into: Chunk, arrived: Chunk | undefined): void {
  arrived?.forEach((sum, i) => sum.device.kernels.binary("add", into[i]!, into[i]!, sum));
}
