import { ring } from "@mosaic/backend-ring";
import { type AttentionBackend, contiguous, type Coordinate, local, masks } from "@mosaic/core";
import { predict, type Profile, profiles, prove } from "@mosaic/planner";
import { describe, expect, test } from "vitest";
import { composed } from "../src/index.ts";
import { type Plan, plan, type PlanOptions } from "../src/plan/index.ts";

const call = { tokens: 16_384, numHeads: 8, numKvHeads: 4, headDim: 64, mask: masks.causal() } as const;
const machine = { nodes: 2, gpusPerNode: 2, profile: "h100-ib400" } as const;

/** Returns everything that can be compared. Strategies themselves cannot, because they are functions. */
function formatRanking({ ranking }: Plan): string {
  return JSON.stringify(ranking);
}

describe("the ranking", () => {
  const planResult = plan({ ...call, ...machine });

  test("lists the best first, then simulated and then estimated strategies, each sorted by time", () => {
    expect(planResult.best).toBe(planResult.ranking[0]);
    expect(planResult.best.evaluatedBy).toBe("simulation");
    const kinds = planResult.ranking.map(({ evaluatedBy }) => evaluatedBy);
    expect(kinds).toEqual(kinds.toSorted().toReversed());
    for (const evaluationKind of ["simulation", "estimate"]) {
      const times = planResult.ranking
        .filter((planned) => planned.evaluatedBy === evaluationKind)
        .map(({ seconds }) => seconds);
      // Within 1 %, bytes and memory determine the order.
      for (const [i, time] of times.entries()) expect(time).toBeGreaterThan((times[i - 1] ?? 0) * 0.99);
    }
  });

  test("states the costs of each strategy", () => {
    for (const planned of planResult.ranking) {
      expect(planned.seconds).toBeGreaterThan(planned.forwardSeconds);
      expect(planned.forwardSeconds).toBeGreaterThan(0);
      expect(planned.computeSeconds).toBeGreaterThan(0);
      expect(planned.bytesWithinNodes + planned.bytesBetweenNodes).toBeGreaterThan(0);
      expect(planned.peakBytes).toBeGreaterThan(0);
      expect(planned.fits).toBe(true);
      expect(planned.strategy.meshFor(4)).toEqual(planned.mesh);
    }
  });

  test("begins with a strategy whose costs equal its prediction and which is proved correct", () => {
    const { best, prediction, job } = planResult;
    const repeatedPrediction = predict({ ...job.shape, backend: best.strategy, mesh: best.mesh }, job.profile);
    expect(repeatedPrediction.seconds).toBe(best.seconds);
    expect(repeatedPrediction.peakBytes).toBe(best.peakBytes);
    expect(prediction.seconds).toBe(best.seconds);
    expect(prove(prediction.record).violations).toEqual([]);
  });

  test("depends only on the options", () => {
    expect(formatRanking(plan({ ...call, ...machine }))).toBe(formatRanking(planResult));
  });
});

test("within 1 % of time, fewer bytes between nodes come first, then less memory, then less time", () => {
  const mask = masks.full();
  const sortKeys = [
    { ...call, mask, numKvHeads: 8, tokens: 65_536, gpusPerNode: 4, profile: "h100-ib400" },
    { ...call, mask, numKvHeads: 8, tokens: 4096, nodes: 2, gpusPerNode: 2, profile: "cpu-local" },
  ].map((options) => {
    const { ranking } = plan(options as PlanOptions);
    const simulated = ranking.filter(({ evaluatedBy }) => evaluatedBy === "simulation");
    const minSeconds = Math.min(...simulated.map(({ seconds }) => seconds));
    return simulated.map(({ seconds, bytesBetweenNodes, peakBytes }) => {
      const bucket = Math.floor(Math.log(seconds / minSeconds) / Math.log(1.01));
      return [bucket, bytesBetweenNodes, peakBytes, seconds] as const;
    });
  });
  type SortKey = (typeof sortKeys)[number][number];
  const compare = (a: SortKey, b: SortKey): number =>
    a.map((value, i) => value - b[i]!).find((each) => each !== 0) ?? 0;
  for (const keys of sortKeys) {
    expect(keys).toEqual(keys.toSorted(compare));
    // Neither time alone nor time after bytes gives this order.
    expect(keys).not.toEqual(keys.toSorted((a, b) => a[3] - b[3]));
    expect(keys).not.toEqual(keys.toSorted((a, b) => a[0] - b[0] || a[1] - b[1] || a[3] - b[3]));
  }
});

test("estimated strategies that fit precede simulated ones that do not", () => {
  // The two ranks with the fewest tokens are estimated, so that the simulation of all ranks has higher peaks.
  const options: PlanOptions = {
    ...{ ...call, mask: masks.full(), tokens: 65_536, gpusPerNode: 4, profile: "h100-ib400", simulate: 1 },
    placement: contiguous([20_000, 18_000, 16_000, 11_536]),
  };
  const { best } = plan(options);
  const { ranking } = plan({ ...options, memoryLimit: best.peakBytes - 1 });
  const groups = ranking.map(({ evaluatedBy, fits }) => `${evaluatedBy} ${fits ? "fits" : "does not fit"}`);
  expect(groups.filter((group, i) => group !== groups[i - 1])).toEqual([
    "simulation fits",
    "estimate fits",
    "simulation does not fit",
    "estimate does not fit",
  ]);
  for (const { fits, peakBytes } of ranking) expect(fits).toBe(peakBytes < best.peakBytes);
});

test("the default placement is zigzag for a causal mask, otherwise contiguous", () => {
  const getPlacementName = (options: object) =>
    plan({ ...call, gpusPerNode: 2, simulate: 1, ...options }).job.shape.placement.name;
  expect(getPlacementName({})).toBe("zigzag");
  expect(getPlacementName({ mask: undefined })).toBe("contiguous");
  expect(getPlacementName({ mask: masks.slidingWindow(64) })).toBe("contiguous");
  expect(getPlacementName({ placement: "striped" })).toBe("striped");
});

test("plan uses the profile of the device if none is given", () => {
  const getProfileName = (options: object) =>
    plan({ ...call, gpusPerNode: 2, simulate: 1, ...options }).job.profile.name;
  expect(getProfileName({})).toBe("cpu-local");
  expect(getProfileName({ device: "cuda" })).toBe("h100-ib400");
});

test("plan prefers strategies with fewer bytes between nodes on a slow network", () => {
  const links = profiles["h100-ib400"].links;
  const slowProfile: Profile = {
    ...profiles["h100-ib400"],
    links: { ...links, "inter-node": { ...links["inter-node"], bandwidth: 1e9 } },
  };
  const fastPlan = plan({ ...call, ...machine });
  const slowPlan = plan({ ...call, ...machine, profile: slowProfile });
  const minBytesBetweenNodes = Math.min(...slowPlan.ranking.map(({ bytesBetweenNodes }) => bytesBetweenNodes));
  expect(slowPlan.best.bytesBetweenNodes).toBeLessThan(1.2 * minBytesBetweenNodes);
  expect(slowPlan.best.seconds).toBeGreaterThan(fastPlan.best.seconds);
});

test("plan chooses a strategy with fewer bytes between nodes for a narrow window than for a full mask", () => {
  const windowPlan = plan({ ...call, ...machine, mask: masks.slidingWindow(256) });
  const fullMaskPlan = plan({ ...call, ...machine, mask: masks.full() });
  expect(windowPlan.best.bytesBetweenNodes).toBeLessThan(fullMaskPlan.best.bytesBetweenNodes / 1.5);
});

test("strategies that exceed memoryLimit are last and cannot be the best", () => {
  const unlimitedPlan = plan({ ...call, ...machine });
  const leastMemoryStrategy = unlimitedPlan.ranking.reduce((a, b) => (b.peakBytes < a.peakBytes ? b : a));
  const limitedPlan = plan({ ...call, ...machine, memoryLimit: leastMemoryStrategy.peakBytes });
  expect(limitedPlan.best.peakBytes).toBe(leastMemoryStrategy.peakBytes);
  const fits = limitedPlan.ranking.map((planned) => planned.fits);
  expect(fits.indexOf(false)).toBe(fits.lastIndexOf(true) + 1);
  expect(() => plan({ ...call, ...machine, memoryLimit: leastMemoryStrategy.peakBytes - 1 })).toThrow(
    new RegExp(`memoryLimit of at least ${leastMemoryStrategy.peakBytes}`),
  );
});

test("plan compares only strategies on the given mesh", () => {
  const { ranking } = plan({ ...call, ...machine, mesh: { node: 2, gpu: 2 } });
  expect(ranking.length).toBeGreaterThan(2);
  for (const { mesh } of ranking)
    expect(Object.entries(mesh)).toEqual([
      ["node", 2],
      ["gpu", 2],
    ]);
  expect(() => plan({ ...call, ...machine, mesh: { gpu: 2, node: 2 } })).toThrow(
    /^plan: mesh: expected one of \{ sp: 4 \}, .*\{ node: 2, gpu: 2 \}.*, received \{ gpu: 2, node: 2 \}; pass a mesh of 4 ranks/,
  );
});

describe("candidates of the caller", () => {
  const slowBackend: AttentionBackend = {
    ...ring({ axis: "circle" }),
    name: "slowly",
  };

  test("are compared with the built-in strategies, on a given or an inferred mesh", () => {
    const candidates = [
      { backend: slowBackend },
      { backend: composed({ meshShape: { head: 2, seq: 2 } }), name: "mine" },
      { backend: ring({ axis: "a", inner: ring({ axis: "b" }) }), name: "both" },
      { backend: ring({ axis: "a", inner: ring({ axis: "b" }) }), name: "turned", mesh: { a: 4, b: 1 } },
    ];
    const { ranking } = plan({ ...call, ...machine, candidates });
    const meshes = new Map(ranking.map(({ name, mesh }) => [name, mesh]));
    expect(meshes.get("slowly")).toEqual({ circle: 4 });
    expect(meshes.get("mine")).toEqual({ seq: 2, head: 2 });
    expect(meshes.get("both")).toEqual({ a: 2, b: 2 });
    expect(meshes.get("turned")).toEqual({ a: 4, b: 1 });
    const [ownStrategy, builtIn] = ["slowly", "ring 4"].map(
      (name) => ranking.find((planned) => planned.name === name)!,
    );
    expect(ownStrategy!.seconds).toBe(builtIn!.seconds);
  });

  test("are listed as refused with their error if they throw, and the others are compared", () => {
    const failingBackend: AttentionBackend = {
      ...slowBackend,
      name: "broken",
      attend() {
        throw new Error("not today");
      },
    };
    const { refused, best } = plan({ ...call, ...machine, candidates: [{ backend: failingBackend }] });
    expect(refused.map(({ name, error }) => [name, error.message])).toEqual([["broken", "not today"]]);
    expect(best.name).not.toBe("broken");
  });

  test("require a mesh if none can be inferred", () => {
    const deeplyNested = ring({ axis: "a", inner: ring({ axis: "b", inner: ring({ axis: "c" }) }) });
    expect(() => plan({ ...call, ...machine, candidates: [{ backend: deeplyNested }] })).toThrow(
      /a candidate with a mesh.*along a, b, c/,
    );
    expect(() => plan({ ...call, ...machine, candidates: [{ backend: slowBackend, mesh: { circle: 8 } }] })).toThrow(
      /a mesh of 4 ranks, received \{ circle: 8 \}/,
    );
  });

  test("are rejected if not all ranks share each sequence", () => {
    const planWith = (backend: AttentionBackend, mesh: Coordinate) => () =>
      plan({ ...call, ...machine, candidates: [{ backend, mesh }] });
    expect(planWith(slowBackend, { dp: 2, circle: 2 })).toThrow(
      /candidate slowly: expected a mesh whose ranks all share each sequence.*received \{ dp: 2, circle: 2 \} and a backend along circle/,
    );
    expect(planWith(local(), { sp: 4 })).toThrow(
      /candidate local: .* received \{ sp: 4 \} and a backend along no axis/,
    );
    expect(planWith(slowBackend, { circle: 4, dp: 1 })().best.fits).toBe(true);
  });
});

test("the option simulate sets the number of simulations, and onProgress reports the progress", () => {
  const stages: string[] = [];
  const onProgress: PlanOptions["onProgress"] = ({ stage, done, total }) => stages.push(`${stage} ${done}/${total}`);
  const { ranking } = plan({ ...call, ...machine, simulate: 2, onProgress });
  expect(ranking.filter(({ evaluatedBy }) => evaluatedBy === "simulation")).toHaveLength(2);
  expect(stages[0]).toBe(`estimate 0/${ranking.length}`);
  expect(stages.slice(-2)).toEqual(["simulate 0/2", "simulate 1/2"]);
});

test("events are kept only with keepEvents", () => {
  const planWithoutEvents = plan({ ...call, ...machine, simulate: 1 });
  expect(planWithoutEvents.prediction.simulation.ranks.every(({ events }) => events.length === 0)).toBe(true);
  const planWithEvents = plan({ ...call, ...machine, simulate: 1, keepEvents: true });
  expect(planWithEvents.prediction.simulation.ranks.every(({ events }) => events.length > 0)).toBe(true);
  expect(planWithEvents.best.seconds).toBe(planWithoutEvents.best.seconds);
});

test("plan rejects unknown and invalid options", () => {
  const invalidOptions: [object, RegExp][] = [
    [{ tokenz: 3 }, /expected options among .*"tokenz"/],
    [{ tokens: 0 }, /tokens: expected an integer ≥ 1, received 0/],
    [{ numHeads: 1.5 }, /numHeads: expected an integer/],
    [{ numKvHeads: 3 }, /numHeads divisible by numKvHeads, received 8 and 3/],
    [{ gpusPerNode: undefined }, /gpusPerNode: expected an integer ≥ 1, received undefined/],
    [{ profile: "h100" }, /profile: expected h100-ib400, .*received "h100"; measure this machine with calibrate/],
    [
      { dtype: "float32" },
      /dtype: expected .* in profile h100-ib400: bfloat16, float16, received float32; choose a diff/,
    ],
    [
      { profile: { ...profiles["cpu-local"], kernels: { ...profiles["cpu-local"].kernels, attendBackward: {} } } },
      /dtype: expected a data type with speeds in profile cpu-local: none, received bfloat16/,
    ],
    [{ profile: undefined, device: "npu" }, /device: expected "cpu" or "cuda", or a profile, received "npu"/],
    [{ placement: "zigzags" }, /received "zigzags"/],
    [{ memoryLimit: -1 }, /memoryLimit: expected a number of bytes > 0/],
    [{ simulate: 0 }, /simulate: expected an integer ≥ 1/],
    [{ headDim: 512 }, /a strategy that runs, received/],
  ];
  for (const [options, message] of invalidOptions) {
    expect(() => plan({ ...call, ...machine, ...options }), JSON.stringify(options)).toThrow(message);
  }
});
