import { afterEach, expect, test, vi } from "vitest";
import { openRanks, tensor } from "./ranks.ts";

afterEach(() => void vi.unstubAllEnvs());

/** The value of a setting that NCCL chooses itself: NCCL_CONFIG_UNDEF_INT. */
const UNDEFINED = -(2 ** 31);

// NCCL compares minCTAs and maxCTAs even if one of them is undefined, so maxCTAs has its maximum if minCTAs is set.
test.each([
  [{}, `${UNDEFINED} ${UNDEFINED} `],
  [{ minCtas: 8 }, "8 64 "],
  [{ maxCtas: 8 }, `${UNDEFINED} 8 `],
  [{ minCtas: 1, maxCtas: 4, netName: "Socket", warmUp: false }, "1 4 Socket"],
])("NCCL receives the options %j as minCTAs, maxCTAs and netName %j, also for split groups", async (nccl, config) => {
  vi.stubEnv("MOSAIC_EMULATED_NCCL_CONFIG", config);
  await using ranks = await openRanks(2, { nccl });
  const splitGroups = await Promise.all(ranks.groups.map((group) => group.split(0)));
  const xs = ranks.devices.map((device, rank) => tensor(device, [rank], [1]));
  splitGroups.forEach((splitGroup, rank) => splitGroup?.allReduce(xs[rank]!).wait());
  for (const x of xs) expect(Array.from(await x.read())).toEqual([1]);
});

test("the emulated NCCL rejects a configuration other than the specified one", async () => {
  vi.stubEnv("MOSAIC_EMULATED_NCCL_CONFIG", "8 8 ");
  await expect(openRanks(2, { nccl: { minCtas: 8 } })).rejects.toThrow(/ncclInvalidArgument/);
});
