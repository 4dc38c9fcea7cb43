import { expect, test } from "vitest";
import { openRanks } from "./ranks.ts";
import { readAll, tensor } from "./values.ts";

test("ranks may choose different names for one group, even if a collective waits for a late rank", async () => {
  await using ranks = await openRanks(3);
  const groups = await Promise.all(ranks.groups.map((group, rank) => group.split(0, `stage (of rank ${rank})`)));
  const xs = ranks.devices.map((device) => tensor(device, [1], [1]));
  for (const rank of [0, 1]) groups[rank]!.allReduce(xs[rank]!).wait();
  // Ranks that wait compare their positions after 0.1 s.
  await new Promise((resolve) => setTimeout(resolve, 500));
  groups[2]!.allReduce(xs[2]!).wait();
  expect(await readAll(xs)).toEqual(xs.map(() => Float32Array.of(3)));
});

test("different collectives are a mismatch, also between ranks with different names for their group", async () => {
  const ranks = await openRanks(3);
  const groups = await Promise.all(ranks.groups.map((group, rank) => group.split(0, `stage of rank ${rank}`)));
  const xs = ranks.devices.map((device) => tensor(device, [1], [1]));
  groups[0]!.broadcast(xs[0]!, 2).wait();
  groups[1]!.broadcast(xs[1]!, 0).wait();
  const [outcome] = await readAll([xs[0]!]);
  expect(String(outcome)).toContain(
    "rank 0 is at broadcast #1 (stage of rank 0) from rank 2 float32 [1], " +
      "rank 1 at broadcast #1 (stage of rank 1) from rank 0 float32 [1]; ",
  );
  // A rank that finds the mismatch only while it closes reports it once more.
  await Promise.allSettled(ranks.contexts.map((context) => context.close()));
});
