import { CollectiveMismatchError } from "@mosaic/core";
import { expect, test, vi } from "vitest";
import { openRanks } from "./ranks.ts";
import { readAll, tensor } from "./values.ts";

const mismatch =
  /rank 0 is at allReduce #1 \(world\) sum float32 \[1\], rank 1 at allReduce #1 \(world\) sum float32 \[2\]; /;

/** Posts collectives that do not match, and waits until they have ended on both ranks. */
async function openMismatchedRanks() {
  const ranks = await openRanks(2);
  const xs = ranks.devices.map((device, rank) => tensor(device, [1, 2].slice(0, rank + 1), [rank + 1]));
  const works = ranks.groups.map((group, rank) => group.allReduce(xs[rank]!));
  // A mismatch that a rank finds while it closes is always reported. A call that throws the failure would report it, but
  // a trace only ends when the operations posted so far have.
  await Promise.all(ranks.groups.map((group) => group.stopTrace()));
  return { ...ranks, xs, works };
}

async function closeAll({ contexts }: Awaited<ReturnType<typeof openMismatchedRanks>>): Promise<unknown[]> {
  const results = await Promise.allSettled(contexts.map((context) => context.close()));
  return results.filter((result) => result.status === "rejected").map(({ reason }) => reason as unknown);
}

test.each([false, true])("close rejects with a mismatch that no call has reported (wait: %s)", async (waits) => {
  const ranks = await openMismatchedRanks();
  if (waits) for (const work of ranks.works) work.wait();
  const errors = await closeAll(ranks);
  expect(errors.length).toBeGreaterThan(0);
  for (const error of errors) {
    expect(error).toBeInstanceOf(CollectiveMismatchError);
    expect((error as Error).message).toMatch(mismatch);
  }
});

test("close resolves after a mismatch that a read has reported", async () => {
  const ranks = await openMismatchedRanks();
  for (const work of ranks.works) work.wait();
  const [outcome] = await readAll([ranks.xs[0]!]);
  expect((outcome as Error).message).toMatch(mismatch);
  expect(await closeAll(ranks)).toEqual([]);
});

test("close resolves after a mismatch that a later collective has reported", async () => {
  const ranks = await openMismatchedRanks();
  await vi.waitFor(() => expect(() => ranks.groups[0]!.barrier()).toThrow(mismatch), { timeout: 10_000 });
  expect(await closeAll(ranks)).toEqual([]);
});
