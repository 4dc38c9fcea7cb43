import { describe, expect, test } from "vitest";
import { attention } from "../../src/attention/attention.ts";
import { type AttentionBackend, local } from "../../src/attention/backend.ts";
import type { Context } from "../../src/context.ts";
import { zeros } from "../../src/creation.ts";
import { OptionError } from "../../src/errors.ts";
import { CrossAxisAttention } from "../../src/modules/cross-axis-attention.ts";
import { MultiAxisAttention } from "../../src/modules/multi-axis-attention.ts";
import { MultiAxisAttention2D } from "../../src/modules/multi-axis-attention-2d.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import { allGatherBackend, referenceWorld } from "../reference/index.ts";

const embedOptions = { embedDim: 8, numHeads: 2 };

/** A backend whose `check` requires an axis "gpu". */
const strictBackend: AttentionBackend = {
  ...allGatherBackend("gpu"),
  name: "demanding",
  check({ rank, mesh }) {
    if ("gpu" in mesh.shape) return;
    throw new OptionError({ where: `demanding, rank ${rank}`, remedy: "init({ mesh: { gpu: 2 } })" });
  },
};

describe("the mesh requirements of a backend", () => {
  const expectedMessage = (rank: number): string => `demanding, rank ${rank}: init({ mesh: { gpu: 2 } })`;

  test("are checked on every rank before attention validates layouts", async () => {
    for (const ctx of await referenceWorld(2)) {
      const rows = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 4 });
      const q = zeros(ctx, [1, 2, 2, 4]);
      const call = () => attention(ctx, q, q, q, { backend: strictBackend, queries: rows, keys: rows });
      expect(call).toThrow(expectedMessage(ctx.rank));
    }
  });

  test("are checked when a module is created", async () => {
    const modules: ((ctx: Context, backend: AttentionBackend) => object)[] = [
      (ctx, backend) => new MultiAxisAttention(ctx, { ...embedOptions, backend, attentionAxis: 1 }),
      (ctx, backend) => new MultiAxisAttention2D(ctx, { ...embedOptions, backend, axis1: 1, axis2: 2 }),
      (ctx, backend) => new CrossAxisAttention(ctx, { ...embedOptions, backend, qAxis: 1, kvAxis: 1 }),
    ];
    for (const ctx of await referenceWorld(2)) {
      for (const createModule of modules)
        expect(() => createModule(ctx, strictBackend)).toThrow(expectedMessage(ctx.rank));
    }
    const [matchingContext] = await referenceWorld(2, { mesh: { gpu: 2 } });
    for (const createModule of modules) expect(() => createModule(matchingContext!, strictBackend)).not.toThrow();
  });
});

test("modules pass the same layout and mask objects to the backend in every forward", async () => {
  const [ctx] = await referenceWorld(1);
  const calls: unknown[][] = [];
  const backend: AttentionBackend = {
    ...local(),
    name: "recording",
    attend(callContext, call, state, kv) {
      calls.push([call.queries, call.keys, call.mask]);
      local().attend(callContext, call, state, kv);
    },
  };
  const createModules = () => [
    new MultiAxisAttention(ctx!, { ...embedOptions, backend, attentionAxis: 1, causal: true }),
    new MultiAxisAttention2D(ctx!, { ...embedOptions, backend, axis1: 1, axis2: 2 }),
  ];
  using x = zeros(ctx!, [1, 3, 2, 8]);
  for (const attn of [...createModules(), ...createModules()]) attn.forward(x).dispose();
  const [sequenceCall, gridCall, ...repeatedCalls] = calls;
  for (const [i, expectedCall] of [sequenceCall!, gridCall!].entries())
    expect(repeatedCalls[i]!.map((each, field) => each === expectedCall[field])).toEqual([true, true, true]);
});

describe("an omitted backend", () => {
  const modules: readonly [name: string, make: (ctx: Context, backend?: "local") => object][] = [
    [
      "MultiAxisAttention",
      (ctx, backend) => new MultiAxisAttention(ctx, { ...embedOptions, backend, attentionAxis: 1 }),
    ],
    [
      "MultiAxisAttention2D",
      (ctx, backend) => new MultiAxisAttention2D(ctx, { ...embedOptions, backend, axis1: 1, axis2: 2 }),
    ],
    [
      "CrossAxisAttention",
      (ctx, backend) => new CrossAxisAttention(ctx, { ...embedOptions, backend, qAxis: 1, kvAxis: 1 }),
    ],
    [
      "attention",
      (ctx, backend) => {
        const q = zeros(ctx, [1, 2, 2, 4]);
        return attention(ctx, q, q, q, { backend });
      },
    ],
  ];

  test.each(modules)(
    "is rejected by %s if the mesh shards sequences, unless local is named",
    async (name, createModule) => {
      const meshes = [{ sp: 2 }, { node: 2, gpu: 1 }];
      for (const mesh of meshes) {
        const [axis] = Object.keys(mesh);
        for (const ctx of await referenceWorld(2, { mesh })) {
          expect(() => createModule(ctx)).toThrow(OptionError);
          expect(() => createModule(ctx)).toThrow(
            `${name}: backend: expected a backend for the mesh axes ${axis}: 2, received none; pass backend: "ring" (each`,
          );
          expect(() => createModule(ctx, "local")).not.toThrow();
        }
      }
    },
  );

  test.each(modules)("is accepted by %s if no sequence is sharded", async (_, createModule) => {
    for (const mesh of [{ sp: 1 }, { dp: 2, sp: 1 }, { dp_replicate: 2, dp_shard: 2, sp: 1 }]) {
      const size = Object.values(mesh).reduce((product, length) => product * length, 1);
      for (const ctx of await referenceWorld(size, { mesh })) expect(() => createModule(ctx)).not.toThrow();
    }
  });
});

describe("meshShape", () => {
  test("selects a backend of that shape, which then checks the mesh", async () => {
    const requestedShapes: (readonly number[])[] = [];
    const checkedBackends: string[] = [];
    const gridBackend: AttentionBackend = {
      ...local(),
      name: "grid",
      withShape(shape) {
        requestedShapes.push(shape);
        const check: AttentionBackend["check"] = (_, layouts) =>
          void checkedBackends.push(layouts ? "shaped, with layouts" : "shaped");
        return { ...gridBackend, name: "shaped", check };
      },
      check: () => void checkedBackends.push("grid"),
    };
    const [ctx] = await referenceWorld(1, { backends: [gridBackend] });
    const attn = new MultiAxisAttention(ctx!, {
      ...embedOptions,
      attentionAxis: 1,
      backend: "grid",
      meshShape: [2, 3],
    });
    void new MultiAxisAttention2D(ctx!, {
      ...embedOptions,
      axis1: 0,
      axis2: 1,
      backend: gridBackend,
      meshShape: [1, 1],
    });
    expect(requestedShapes).toEqual([
      [2, 3],
      [1, 1],
    ]);
    expect(checkedBackends).toEqual(["shaped", "shaped"]);
    expect((await attn.forward(zeros(ctx!, [1, 2, 8])).read()).length).toBe(16);
    expect(checkedBackends).toEqual(["shaped", "shaped", "shaped", "shaped, with layouts"]);
  });

  test("is rejected if the backend does not support a grid", async () => {
    const [ctx] = await referenceWorld(1, { backends: [allGatherBackend()] });
    for (const backend of ["gather", undefined]) {
      const options = { ...embedOptions, attentionAxis: 1, meshShape: [1, 1] as const, ...(backend && { backend }) };
      expect(() => new MultiAxisAttention(ctx!, options)).toThrow(
        `MultiAxisAttention: meshShape: expected a backend whose ranks form a grid, such as "mesh2d", received "${backend ?? "local"}"`,
      );
    }
  });
});
