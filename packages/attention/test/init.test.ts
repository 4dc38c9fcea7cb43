import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as conformance from "@mosaic/conformance";
import * as core from "@mosaic/core";
import * as metaAttention from "@mosaic/meta-attention";
import * as models from "@mosaic/models";
import * as nn from "@mosaic/nn";
import * as planner from "@mosaic/planner";
import * as plan from "@mosaic/strategies/plan";
import { afterEach, describe, expect, it, vi } from "vitest";
import * as coreSubpath from "../src/core.ts";
import * as mosaic from "../src/index.ts";
import * as metaSubpath from "../src/meta.ts";
import * as modelsSubpath from "../src/models.ts";
import * as nnSubpath from "../src/nn.ts";
import { importOptional } from "../src/device-factories.ts";
import * as plannerSubpath from "../src/planner.ts";
import * as testingSubpath from "../src/testing.ts";

afterEach(() => vi.unstubAllEnvs());

describe("a traced program", () => {
  it("calls beforeClose, and then writes its trace when its context is closed", async () => {
    const directory = mkdtempSync(join(tmpdir(), "mosaic-init-"));
    try {
      vi.stubEnv("MOSAIC_TRACE_DIR", join(directory, "attempt_0"));
      const environments: (readonly string[])[] = [];
      const ctx = await mosaic.init({
        device: "cpu",
        rank: 0,
        worldSize: 1,
        beforeClose: () => void environments.push(readdirSync(join(directory, "attempt_0"))),
      });
      using x = mosaic.randn(ctx, [8, 8]);
      await x.read();
      await ctx.close();
      expect(environments).toEqual([[]]);
      const trace = JSON.parse(readFileSync(join(directory, "attempt_0/rank-0.json"), "utf8"));
      expect(trace.events.kinds).toContainEqual({ lane: "compute", name: "random" });
      for (const seconds of ["many", "0", "2000001"]) {
        vi.stubEnv("MOSAIC_TRACE_SECONDS", seconds);
        await expect(mosaic.init({ device: "cpu", rank: 0, worldSize: 1 })).rejects.toThrow(
          `environment variable MOSAIC_TRACE_SECONDS: expected a number above 0 and at most 2000000, received "${seconds}"`,
        );
      }
    } finally {
      rmSync(directory, { recursive: true, force: true });
    }
  });

  it("rejects a directory that cannot be created, before its program runs", async () => {
    const directory = mkdtempSync(join(tmpdir(), "mosaic-init-"));
    try {
      const file = join(directory, "file");
      writeFileSync(file, "");
      for (const [path, code] of [
        [file, "EEXIST"],
        [join(file, "traces"), "ENOTDIR"],
      ] as const) {
        vi.stubEnv("MOSAIC_TRACE_DIR", path);
        const beforeClose = vi.fn<() => void>();
        const promise = mosaic.init({ device: "cpu", rank: 0, worldSize: 1, beforeClose });
        await expect(promise).rejects.toThrow(core.OptionError);
        await expect(promise).rejects.toThrow(
          new RegExp(
            "^environment variable MOSAIC_TRACE_DIR: expected a directory that can be created and written, " +
              `received "${path}" \\(${code}: .*\\); set it to a different directory, or unset it$`,
          ),
        );
        expect(beforeClose).toHaveBeenCalledOnce();
      }
    } finally {
      rmSync(directory, { recursive: true, force: true });
    }
  });
});

describe("exports of @mosaic/attention", () => {
  it("include all exports of each package under its subpath", () => {
    for (const [subpath, ...exportedModules] of [
      [coreSubpath, core],
      [metaSubpath, metaAttention],
      [modelsSubpath, models],
      [nnSubpath, nn],
      [plannerSubpath, planner, plan],
      [testingSubpath, conformance],
    ] as const) {
      for (const exportedModule of exportedModules) expect(subpath).toMatchObject({ ...exportedModule });
    }
  });

  it("are fewer than 75 at the root, and identical to those of core except for init", () => {
    expect(Object.keys(mosaic).length).toBeLessThan(75);
    for (const [name, value] of Object.entries(core)) {
      if (name !== "init" && Object.hasOwn(mosaic, name)) expect(mosaic).toHaveProperty(name, value);
    }
    expect(mosaic.init).not.toBe(core.init);
    expect(mosaic.local).toBe(core.local);
  });

  it("include every name that the planner's code uses", () => {
    const shape = { tokens: 7, numHeads: 4, headDim: 8, gpusPerNode: 5, profile: "cpu-local" } as const;
    const mask = core.masks.documents([3, 4], core.masks.slidingWindow(2));
    const plans = [
      plan.plan({ ...shape, mask, placement: core.contiguous([1, 2, 2, 1, 1]) }),
      plan.plan({ ...shape, keyTokens: 9 }),
    ];
    for (const { best } of plans) {
      const names = [...best.code.matchAll(/\bmosaic\s*\.(\w+)/g)].map(([, name]) => name!);
      expect(names).toContain("layoutOf");
      for (const name of names) expect(mosaic).toHaveProperty(name);
    }
  });
});

describe("init", () => {
  it("requires no options, and creates one rank on the CPU with local and ring", async () => {
    await using ctx = await mosaic.init();
    expect(ctx.device.type).toBe("cpu");
    expect(ctx.mesh.shape).toEqual({ sp: 1 });
    expect(ctx.backend("local").axes).toEqual([]);
    expect(ctx.backend("ring").axes).toEqual(["sp"]);
  });

  it("accepts custom devices, collectives, meshes and backends", async () => {
    const customBackend: mosaic.AttentionBackend = { ...mosaic.local(), name: "mine" };
    await using ctx = await mosaic.init({
      device: mosaic.cpu({ threads: 1 }),
      collectives: mosaic.localCollectives(),
      mesh: { dp: 1, node: 1, gpu: 1 },
      backends: [mosaic.ring({ axis: "node", inner: mosaic.ring({ axis: "gpu" }) }), customBackend],
      rank: 0,
      worldSize: 1,
    });
    expect(ctx.backend("ring").axes).toEqual(["node", "gpu"]);
    expect(ctx.backend("mine")).toBe(customBackend);
    expect(ctx.mesh.axes).toEqual(["dp", "node", "gpu"]);
  });

  it("reads the ranks of the environment, and requires a job name to connect them", async () => {
    vi.stubEnv("WORLD_SIZE", "2");
    vi.stubEnv("RANK", "0");
    await expect(mosaic.init()).rejects.toThrow(/connect: expected a job name.*start the ranks with mosaic-run/);
  });

  it("reports how to start a program of several ranks", async () => {
    await expect(mosaic.init({ spSize: 4 })).rejects.toThrow(
      "init: spSize: expected 1, as no launcher started this process, received 4; start it with npx mosaic-run --nproc-per-node 4 <script>",
    );
    await expect(mosaic.init({ mesh: { dp: 2, sp: 3 } })).rejects.toThrow("--nproc-per-node 6");
  });

  it.each([
    [{ spsize: 4 }, /expected options among .*spSize.*, received "spsize"/],
    [{ device: "tpu" }, /init: device: expected "cpu", "cuda" or a custom object, received "tpu"/],
    [{ collectives: "mpi" }, /init: collectives: expected "local", "nccl", "ucx" or a custom object, received "mpi"/],
    [{ worldSize: 2, rank: 0, spSize: 3 }, /spSize: expected a divisor of the world size, 2, received 3/],
    [{ rank: 0, worldSize: 1, mesh: { sp: 2 } }, core.ShapeError],
    [{ rank: 3, worldSize: 2 }, /a rank from 0 to worldSize/],
    [{ mesh: { sp: 1 }, spSize: 1 }, /mesh or spSize/],
    [{ backends: [mosaic.ring(), mosaic.ring()] }, /duplicate name "ring"/],
  ])("rejects %j", async (options, message) => {
    await expect(mosaic.init(options as mosaic.InitOptions)).rejects.toThrow(message);
  });

  it("names the missing package and the command that installs it", async () => {
    const importPromise = importOptional("@mosaic/kernels-none", 'init: device "none"');
    await expect(importPromise).rejects.toThrow(
      'init: device "none": expected the package @mosaic/kernels-none, received none; run npm install @mosaic/kernels-none',
    );
    await expect(importPromise).rejects.toBeInstanceOf(core.OptionError);
  });

  it("lists the available backends if the given one is unknown", async () => {
    await using ctx = await mosaic.init();
    const createAttention = (backend: string): mosaic.MultiAxisAttention =>
      new mosaic.MultiAxisAttention(ctx, { embedDim: 8, numHeads: 2, attentionAxis: 1, backend });
    expect(() => createAttention("star")).toThrow(
      /expected one of "local", "ring", "mesh2d", "ulysses", "flex", received "star"/,
    );
    expect(() => createAttention("composed")).toThrow(/npm install @mosaic\/strategies/);
  });
});

describe("world", () => {
  it("uses the defaults of init", async () => {
    const contexts = await mosaic.world(4, { spSize: 2, seed: 3 });
    expect(contexts.map(({ mesh }) => mesh.coordinate)).toEqual([
      { dp: 0, sp: 0 },
      { dp: 0, sp: 1 },
      { dp: 1, sp: 0 },
      { dp: 1, sp: 1 },
    ]);
    expect(contexts.map((ctx) => ctx.backend("ring").name)).toEqual(["ring", "ring", "ring", "ring"]);
    await Promise.all(contexts.map((ctx) => ctx.close()));
  });

  it("rejects unknown options", async () => {
    await expect(mosaic.world(2, { axis: "sp" } as mosaic.WorldOptions)).rejects.toThrow(/received "axis"/);
  });
});
