import { world } from "@mosaic/collectives-local";
import { type MakeWorld, runOnWorld } from "@mosaic/conformance";
import { type Context, MultiAxisAttention, MultiAxisAttention2D, OptionError, randn, type Tensor } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { describe, expect, test } from "vitest";
import { mesh2d } from "../src/index.ts";

type MeshShape = readonly [number, number];
const shapes: readonly MeshShape[] = [
  [3, 2],
  [2, 3],
  [6, 1],
];

/** Creates ranks on which "mesh2d" is registered as in @mosaic/attention. */
const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
  world(size, { ...options, backends: [mesh2d()], device: () => wrapDevice(cpu({ threads: 1 })), timeout: 20 });

const moduleOptions = { embedDim: 16, numHeads: 4, numKvHeads: 2, causal: true, placement: "zigzag" } as const;
type Options = Pick<ConstructorParameters<typeof MultiAxisAttention>[1], "backend" | "meshShape">;

const modules: Record<string, (ctx: Context, options: Options) => Tensor> = {
  MultiAxisAttention(ctx, options) {
    using attn = new MultiAxisAttention(ctx, { ...moduleOptions, ...options, attentionAxis: 1 });
    using x = randn(ctx, [2, 8, 16]);
    return attn.forward(x);
  },
  MultiAxisAttention2D(ctx, options) {
    using attn = new MultiAxisAttention2D(ctx, { ...moduleOptions, ...options, axis1: 1, axis2: 3 });
    using x = randn(ctx, [2, 4, 1, 2, 16]);
    return attn.forward(x);
  },
};

describe.each(Object.entries(modules))("%s", (_, runModule) => {
  /** Returns the output and the bytes sent of every rank. */
  const runOnSixRanks = (options: Options) =>
    runOnWorld(makeWorld, { size: 6 }, async (ctx) => {
      using out = runModule(ctx, options);
      const values = await out.read();
      return { values: Array.from(values), bytesSent: ctx.world.traffic().bytesSent };
    });

  test("meshShape sets the grid of a backend that is given by name or as an object", async () => {
    const sentBytes: string[] = [];
    for (const meshShape of shapes) {
      const namedResults = await runOnSixRanks({ backend: "mesh2d", meshShape });
      expect(namedResults).toEqual(await runOnSixRanks({ backend: mesh2d({ shape: meshShape }) }));
      sentBytes.push(namedResults.map(({ bytesSent }) => bytesSent).join());
    }
    expect(new Set(sentBytes).size).toBe(shapes.length);
    // `meshShape` overrides the shape with which the backend was created.
    const reshapedResults = await runOnSixRanks({ backend: mesh2d({ shape: [1, 6] }), meshShape: [3, 2] });
    expect(reshapedResults.map(({ bytesSent }) => bytesSent).join()).toBe(sentBytes[0]);
  });

  test("invalid grids, and backends without a grid, are rejected on every rank before anything is sent", async () => {
    await runOnWorld(makeWorld, { size: 6 }, async (ctx) => {
      const invalidOptions: [Options, string][] = [
        [{ backend: "mesh2d", meshShape: [2, 2] }, `mesh2d(sp), rank ${ctx.rank}: expected a grid of 6 ranks`],
        [{ backend: "mesh2d", meshShape: [6, 0] }, "two integers > 0, [rows, columns], received [6,0]"],
        [{ backend: "mesh2d", meshShape: 6 as never }, "[rows, columns], received 6"],
        [
          { backend: "local", meshShape: [3, 2] },
          'meshShape: expected a backend whose ranks form a grid, such as "mesh2d", received "local"',
        ],
        [{ backend: mesh2d({ axis: "gpu" }), meshShape: [3, 2] }, 'one of the mesh\'s axes sp, received "gpu"'],
      ];
      for (const [options, message] of invalidOptions) {
        expect(() => runModule(ctx, options)).toThrow(OptionError);
        expect(() => runModule(ctx, options)).toThrow(message);
      }
      expect(ctx.world.traffic().messagesSent).toBe(0);
    });
  });
});
