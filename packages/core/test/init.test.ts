import { inspect } from "node:util";
import { afterEach, describe, expect, test, vi } from "vitest";
import { local } from "../src/attention/backend.ts";
import type { Context } from "../src/context.ts";
import { fromArray, ones, zeros } from "../src/creation.ts";
import { randn } from "../src/random.ts";
import { ClosedError, errorFromFailure, OptionError, PeerLostError, ShapeError } from "../src/errors.ts";
import { init, type InitOptions } from "../src/init.ts";
import { coordinateOf, omitAxes } from "../src/mesh.ts";
import { ReferenceDevice, referenceWorld } from "./reference/index.ts";

const start = (options: Omit<InitOptions, "device"> = {}) => init({ device: new ReferenceDevice(), ...options });

afterEach(() => vi.unstubAllEnvs());

describe("init", () => {
  test("creates one rank without launcher variables", async () => {
    await using ctx = await start();
    expect([ctx.rank, ctx.size, ctx.seed]).toEqual([0, 1, 0]);
    expect(ctx.mesh.shape).toEqual({ sp: 1 });
  });

  test("reads rank and world size from the environment", async () => {
    vi.stubEnv("RANK", "0");
    vi.stubEnv("WORLD_SIZE", "1");
    await using ctx = await start();
    expect(ctx.size).toBe(1);
    vi.stubEnv("WORLD_SIZE", "many");
    await expect(start()).rejects.toThrow(/environment variable WORLD_SIZE: expected an integer ≥ 1, received "many"/);
    vi.stubEnv("WORLD_SIZE", "2");
    await expect(start()).rejects.toThrow(/collectives for 2 ranks, received none; pass collectives, such as/);
  });

  test("rejects invalid and contradictory options", async () => {
    await expect(start({ rank: 3, worldSize: 2 })).rejects.toThrow(/rank 3 of 2/);
    await expect(start({ mesh: { sp: 1 }, spSize: 1 })).rejects.toThrow(/mesh or spSize, received both/);
    await expect(start({ spSize: 2 })).rejects.toThrow(/a divisor of the world size, 1, received 2/);
    await expect(start({ mesh: { dp: 2, sp: 4 } })).rejects.toThrow(ShapeError);
    await expect(start({ mesh: { sp: 1, 0: 1, "": 1, "-sp": 1 } })).rejects.toThrow(
      /names that begin with a letter or an underscore, received "0", "", "-sp"/,
    );
    await expect(start({ spsize: 1 } as object)).rejects.toThrow(/options among device, .*received "spsize"/);
    await expect(start({ seed: -1 })).rejects.toThrow(/init: seed: expected an integer ≥ 0, received -1/);
    await expect(start({ timeout: 0 })).rejects.toThrow(/seconds > 0, at most 1e9, received 0/);
    await expect(init({} as InitOptions)).rejects.toThrow(/a device, received undefined; pass a Device/);
    const duplicateBackend = { ...local(), name: "twin" };
    await expect(start({ backends: [duplicateBackend, duplicateBackend] })).rejects.toThrow(/duplicate name "twin"/);
    await expect(start({ backends: [local(), local()] })).rejects.toThrow(
      /duplicate name "local"; .* rename it: \{ \.\.\.backend, name: "…" \}$/,
    );
    await using ctx = await start({ backends: [{ ...local(), name: "local" }] });
    expect(ctx.backends).toEqual(["local"]);
  });

  test.each([
    "data",
    "dataParallel",
    "DP",
    "dp0",
    "dpShard",
    "ddp",
    "ddp2",
    "fsdp",
    "fsdp_shard",
    "data-parallel",
    "replica",
    "batch",
  ])("rejects the axis %s, whose ranks would share each sequence", async (name) => {
    await expect(start({ mesh: { [name]: 1, sp: 1 } })).rejects.toThrow(
      `init: mesh: expected data-parallel axes that are named "dp", or whose names begin with "dp_", received "${name}"; rename the axis to "dp"`,
    );
  });

  test.each([
    [{ dp: 1, sp: Number.NaN }, '{"dp":1,"sp":NaN} with product NaN'],
    [{ dp: 2, sp: 0.5 }, '{"dp":2,"sp":0.5} with product 1'],
    [{ sp: 2 }, '{"sp":2} with product 2'],
  ])("rejects the mesh %o of one rank", async (mesh, received) => {
    await expect(start({ mesh, rank: 0, worldSize: 1 })).rejects.toThrow(
      `init: expected integer axis lengths ≥ 1 with product 1, the world size, received ${received}; correct the mesh`,
    );
  });

  test("arranges ranks row-major and creates a group for each axis", async () => {
    const ranks = await referenceWorld(6, { mesh: { dp: 2, sp: 3 } });
    expect(ranks.map((ctx) => ctx.mesh.coordinate)).toEqual(
      [0, 1, 2, 3, 4, 5].map((rank) => ({ dp: Math.floor(rank / 3), sp: rank % 3 })),
    );
    expect(ranks[4]!.mesh.group("sp").ranks).toEqual([3, 4, 5]);
    expect(ranks[4]!.mesh.group("dp").ranks).toEqual([1, 4]);
    expect(ranks[4]!.mesh.group("dp").rank).toBe(1);
    expect(() => ranks[0]!.mesh.group("tp")).toThrow(/one of the axes dp, sp, received "tp"/);
  });

  test("a context and its groups are formatted without their devices", async () => {
    const ranks = await referenceWorld(6, { mesh: { dp: 2, sp: 3 } });
    const text = "Context rank 4 of 6 (dp 1 of 2, sp 1 of 3) on reference:4, seed 0, backends local";
    expect([inspect(ranks[4]), `${ranks[4]}`]).toEqual([text, text]);
    expect(inspect({ ctx: ranks[4] })).toBe(`{\n  ctx: ${text}\n}`);
    const ctx = await start({ rank: 0, worldSize: 1 });
    const group = "ProcessGroup world, rank 0 of 1 on reference:0";
    expect([inspect(ctx.world), `${ctx.world}`]).toEqual([group, group]);
    expect(inspect(ctx.mesh)).toContain(`world: ${group},`);
    await ctx.close();
    expect(inspect(ctx)).toMatch(/, closed$/);
  });

  test("JSON of a context names its device, whose stream has a handle that JSON does not have", async () => {
    const [, ctx] = await referenceWorld(2, { mesh: { dp: 2, sp: 1 } });
    expect(JSON.parse(JSON.stringify({ ctx }))).toEqual({
      ctx: {
        rank: 1,
        size: 2,
        mesh: { dp: 2, sp: 1 },
        coordinate: { dp: 1, sp: 0 },
        device: "reference:1",
        seed: 0,
        backends: ["local"],
      },
    });
  });

  test("arranges ranks by host, so that groups along inner axes stay within a host", async () => {
    const cyclicContexts = await referenceWorld(4, { mesh: { node: 2, local: 2 }, hosts: [0, 1, 0, 1] });
    expect(cyclicContexts.map(({ mesh }) => mesh.coordinate)).toEqual([
      { node: 0, local: 0 },
      { node: 1, local: 0 },
      { node: 0, local: 1 },
      { node: 1, local: 1 },
    ]);
    for (const { mesh } of cyclicContexts) {
      expect(mesh.hosts).toEqual([0, 0, 1, 1]);
      expect(new Set(mesh.group("local").hosts).size).toBe(1);
      for (const axis of mesh.axes) expect(mesh.group(axis).rank).toBe(mesh.coordinate[axis]);
    }
    const blockContexts = await referenceWorld(4, { mesh: { node: 2, local: 2 }, hosts: [0, 0, 1, 1] });
    expect(blockContexts.map(({ mesh }) => mesh.coordinate)).toEqual(
      [0, 1, 2, 3].map((rank) => coordinateOf(rank, { node: 2, local: 2 })),
    );
  });

  test.each([
    ["along which a group would number its members otherwise", [0, 1, 1, 0], { node: 2, local: 2 }],
    ["of one axis, which is the world in the order of its ranks", [0, 1, 0, 1], { sp: 4 }],
    ["on hosts of different sizes", [0, 1, 0, 0], { node: 2, local: 2 }],
  ])("keeps ranks in numerical order in a mesh %s", async (_, hosts, mesh) => {
    const contexts = await referenceWorld(4, { mesh, hosts });
    expect(contexts.map((ctx) => ctx.mesh.coordinate)).toEqual([0, 1, 2, 3].map((rank) => coordinateOf(rank, mesh)));
    expect(contexts[0]!.mesh.hosts).toEqual(hosts);
  });

  test("does not follow later changes to the mesh option", async () => {
    const mesh = { dp: 1, sp: 1 };
    await using ctx = await start({ mesh });
    mesh.sp = 8;
    expect(ctx.mesh.shape).toEqual({ dp: 1, sp: 1 });
  });

  test("derives the dp axis from spSize", async () => {
    await using ctx = await start({ spSize: 1 });
    expect(ctx.mesh.axes).toEqual(["dp", "sp"]);
    const ranks = await referenceWorld(4, { spSize: 2 });
    expect(ranks[3]!.mesh.shape).toEqual({ dp: 2, sp: 2 });
  });
});

describe("a context", () => {
  test("finds backends by name, and names the package of a known backend that is missing", async () => {
    const customBackend = { ...local(), name: "mine" };
    await using ctx = await start({ backends: [customBackend] });
    expect(ctx.backends).toEqual(["local", "mine"]);
    expect(ctx.backend("mine")).toBe(customBackend);
    expect(ctx.backend("local").name).toBe("local");
    expect(ctx.backend(customBackend)).toBe(customBackend);
    expect(() => ctx.backend("ring")).toThrow(
      /one of "local", "mine", received "ring"; npm install @mosaic\/backend-ring/,
    );
    expect(() => ctx.backend("auto")).toThrow(
      /npm install @mosaic\/strategies and pass auto\(…\) of @mosaic\/strategies\/plan in init/,
    );
    for (const unknownName of ["rign", "constructor"])
      expect(() => ctx.backend(unknownName)).toThrow(`received "${unknownName}"; pass the backend itself`);
    expect(() => ctx.backend("rign")).toThrow(OptionError);
  });

  test("calls beforeClose once before closing, and closes even if it fails", async () => {
    const calls: boolean[] = [];
    const ctx = await start({
      beforeClose: async (closingContext) => {
        await Promise.resolve();
        ones(closingContext, [1])[Symbol.dispose]();
        calls.push(closingContext === ctx);
      },
    });
    await Promise.all([ctx.close(), ctx.close()]);
    expect(calls).toEqual([true]);
    expect(() => ones(ctx, [1])).toThrow(ClosedError);
    const failingContext = await start({ beforeClose: () => Promise.reject(new Error("disk full")) });
    await expect(failingContext.close()).rejects.toThrow("disk full");
    expect(() => ones(failingContext, [1])).toThrow(ClosedError);
    await expect(start({ beforeClose: 1 as never })).rejects.toThrow(/beforeClose: expected a function/);
  });

  test("closes all groups and the device despite failures, and rejects with the first failure", async () => {
    const [ctx] = await referenceWorld(4, { mesh: { dp: 2, sp: 2 } });
    const closed: string[] = [];
    for (const [name, group] of [
      ...ctx!.mesh.axes.map((axis) => [axis, ctx!.mesh.group(axis)] as const),
      ["world", ctx!.world] as const,
    ])
      vi.spyOn(group, Symbol.asyncDispose).mockImplementation(() => {
        closed.push(name);
        return Promise.reject(new Error(`no end of ${name}`));
      });
    const disposeDevice = vi.spyOn(ctx!.device, Symbol.dispose);
    await expect(ctx!.close()).rejects.toThrow("no end of dp");
    expect(closed).toEqual(["dp", "sp", "world"]);
    expect(disposeDevice).toHaveBeenCalledOnce();
  });

  test("rejects operations after close, which may be called twice", async () => {
    const ctx = await start();
    await ctx.close();
    await ctx.close();
    expect(() => ones(ctx, [1])).toThrow(ClosedError);
    expect(() => ones(ctx, [1])).toThrow(/ones: expected an open context, received a closed context/);
    expect(() => ctx.world.barrier()).toThrow(ClosedError);
    expect(() => ctx.startTrace()).toThrow(ClosedError);
  });

  test("records the kernels of the device in a trace", async () => {
    await using ctx = await start();
    ctx.startTrace();
    ones(ctx, [2]).dispose();
    const trace = await ctx.stopTrace();
    expect(trace.map(({ lane, name }) => [lane, name])).toEqual([["compute", "fill"]]);
  });

  test("draws different numbers on each rank and in each call, unless a seed is given", async () => {
    const [a, b] = (await referenceWorld(2)) as [Context, Context];
    const drawNormal = async (ctx: Context, options = {}) => String(await randn(ctx, [4], options).read());
    const drawnValues = [await drawNormal(a), await drawNormal(b), await drawNormal(a), await drawNormal(b)];
    expect(new Set(drawnValues).size).toBe(4);
    expect(await drawNormal(a, { seed: 1, stream: 1 })).toBe(await drawNormal(b, { seed: 1, stream: 1 }));
  });

  test("draws different numbers for seeds that differ only in their high 32 bits", async () => {
    const drawnValues = new Set<string>();
    for (const seed of [5, 5 + 2 ** 32, 5 + 2 ** 52]) {
      await using ctx = await start({ seed });
      drawnValues.add(String(await randn(ctx, [4]).read()));
    }
    expect(drawnValues.size).toBe(3);
  });
});

describe("singleRankGroup", () => {
  test("copies inputs to outputs without sending any bytes", async () => {
    await using ctx = await start();
    const x = fromArray(ctx, [1, 2, 3], [3]);
    const group = await ctx.world.split(0);
    for (const collectiveName of ["allGather", "reduceScatter", "allToAll"] as const) {
      const out = ones(ctx, [3]);
      group[collectiveName](out, x).wait();
      expect([...(await out.read())]).toEqual([1, 2, 3]);
    }
    const out = ones(ctx, [3]);
    group
      .sendRecv([
        { tensor: out, from: 0 },
        { tensor: x, to: 0 },
      ])
      .wait();
    group.allReduce(out).wait();
    group.broadcast(out, 0).wait();
    expect([...(await out.read())]).toEqual([1, 2, 3]);
    expect(group.traffic().bytesSent).toBe(0);
  });

  test("rejects other ranks, unpaired transfers and an output of the wrong size", async () => {
    await using ctx = await start();
    const x = ones(ctx, [1]);
    expect(() => ctx.world.sendRecv([{ tensor: x, to: 1 }])).toThrow(/a rank from 0 to 0, received 1/);
    expect(() => ctx.world.sendRecv([{ tensor: x, to: 0 }])).toThrow(/receives from this rank that match/);
    expect(() => ctx.world.allGather(ones(ctx, [2]), x)).toThrow(ShapeError);
  });

  test("rejects the same invalid calls as a group of several ranks", async () => {
    await using ctx = await start();
    const { world } = ctx;
    const square = zeros(ctx, [3, 3]);
    const column = square.slice(1, 0, 1);
    const x = ones(ctx, [3, 1]);
    expect(() => world.allGather(column, x)).toThrow(/allGather \(world\): expected a contiguous tensor/);
    expect(() => world.allReduce(column)).toThrow(/contiguous/);
    expect(() =>
      world.sendRecv([
        { tensor: column, to: 0 },
        { tensor: x, from: 0 },
      ]),
    ).toThrow(/contiguous/);
    expect(() => world.allReduce(x, "product" as "sum")).toThrow(/sum, mean or max, received "product"/);
    expect(() => world.reduceScatter(x, x, "product" as "sum")).toThrow(OptionError);
    expect(() => world.allGather(x, x, { counts: [2] })).toThrow(/out with 2 elements/);
    expect(() => world.allToAll(x, x, { send: [3], receive: [1, 2] })).toThrow(/1 counts/);
    expect(() => world.allGather(x, x.to("bfloat16"), { label: "who" })).toThrow(
      /who, rank 0: allGather \(world\): expected out with the dtype of input, bf/,
    );
    expect(() => world.allReduce(ones(new ReferenceDevice(), [1]))).toThrow(/on the group's device/);
    expect(Array.from(await square.read())).toEqual(new Array(9).fill(0));
  });

  test("does not retain the tensors that it copied", async () => {
    await using ctx = await start();
    const x = ones(ctx, [2, 2]);
    const out = ones(ctx, [4]);
    ctx.world.allGather(out, x).wait();
    for (const tensor of [x, out]) tensor.dispose();
    expect(ctx.device.memory().allocated).toBe(0);
  });
});

test("coordinateOf and omitAxes return mesh coordinates", () => {
  expect(coordinateOf(5, { node: 2, gpu: 4 })).toEqual({ node: 1, gpu: 1 });
  expect(omitAxes({ dp: 1, sp: 2 }, ["sp"])).toEqual({ dp: 1 });
});

test("errorFromFailure creates the error class of a native failure code", () => {
  expect(errorFromFailure(2, "rank 3 died")).toBeInstanceOf(PeerLostError);
  expect(errorFromFailure(2, "rank 3 died").message).toBe("rank 3 died");
  expect(errorFromFailure(99, "?").name).toBe("DeviceError");
});
