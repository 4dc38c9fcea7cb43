import {
  type Context,
  type DType,
  fromArray,
  full,
  Linear,
  Module,
  ParameterMismatchError,
  reduceGradients,
  type Tensor,
  zeros,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { fullyShard, Sequential } from "../src/index.ts";
import { onMesh } from "./reference/world.ts";

/** A module with the given parameters. */
class Parameters extends Module {
  constructor(parameters: Readonly<Record<string, Tensor>>) {
    super();
    for (const [name, parameter] of Object.entries(parameters)) this.add(name, parameter);
  }

  add(name: string, parameter: Tensor): void {
    this.addParameter(name, parameter);
  }
}

/** Returns the error of the read after the first `reduceGradients`. */
async function compare(ctx: Context, module: Module): Promise<unknown> {
  reduceGradients(ctx, module);
  using x = zeros(ctx, [1]);
  return x.read().then(
    () => undefined,
    (error: unknown) => error,
  );
}

test("parameters that differ are an error of the next read on every rank, and of later calls", async () => {
  await onMesh({ dp: 2, sp: 2 }, async (ctx) => {
    const first = new Linear(ctx, 3, 5);
    using model = new Sequential(first, new Linear(ctx, 5, 2));
    using trained = new Linear(ctx, 3, 5);
    if (ctx.rank === 2) first.loadStateDict(trained.stateDict());
    const [weight] = model.parameters();
    reduceGradients(ctx, model);
    const error = await weight!.read().then(String, (reason: unknown) => reason as ParameterMismatchError);
    expect(error).toBeInstanceOf(ParameterMismatchError);
    expect(error).toMatchObject({
      parameters: ["0.weight", "0.bias"],
      ranks: [2, 3],
      message:
        "reduceGradients: expected parameters that are equal on all ranks, received " +
        '"0.weight", which differs between ranks 1 and 2, ranks 2 and 3; ' +
        '"0.bias", which differs between ranks 1 and 2, ranks 2 and 3; ' +
        "load checkpoints on all ranks, and create parameters with createParameter or from values that are equal on " +
        "all ranks, such as randn with { seed, stream }; register tensors that may differ with addBuffer",
    });
    expect(() => reduceGradients(ctx, model)).toThrow(ParameterMismatchError);
    // The error was reported, so that a program can read the parameters to find its cause.
    expect(await weight!.read()).toHaveLength(15);
    expect(await compare(ctx, trained)).toBe(undefined);
  });
});

test("each read reports the error of one comparison, in their order", async () => {
  await onMesh({ sp: 2 }, async (ctx) => {
    using first = new Parameters({ first: fromArray(ctx, [ctx.rank], [1]) });
    using second = new Parameters({ second: fromArray(ctx, [ctx.rank], [1]) });
    using x = zeros(ctx, [1]);
    reduceGradients(ctx, first);
    const firstRead = x.read();
    reduceGradients(ctx, second);
    await expect(firstRead).rejects.toThrow(/"first", which differs/);
    await expect(x.read()).rejects.toThrow(/"second", which differs/);
    expect([...(await x.read())]).toEqual([0]);
  });
});

test("without a read, close rejects", async () => {
  const closing = onMesh({ sp: 2 }, (ctx) => {
    using model = new Parameters({ scale: fromArray(ctx, [ctx.rank], [1]) });
    reduceGradients(ctx, model);
  });
  await expect(closing).rejects.toThrow(/"scale", which differs between ranks 0 and 1/);
});

test("without a read, the next call throws, and close does not repeat the error", async () => {
  await onMesh({ sp: 2 }, async (ctx) => {
    using model = new Parameters({ scale: fromArray(ctx, [ctx.rank], [1]) });
    reduceGradients(ctx, model);
    // Resolves after the comparison, but does not report its error.
    using x = zeros(ctx, [1]);
    await ctx.device.read(x);
    await ctx.device.stream.synchronize();
    expect(() => reduceGradients(ctx, model)).toThrow(ParameterMismatchError);
  });
});

/** The smallest positive number of each dtype. */
const smallest: Readonly<Record<DType, number>> = { float32: 2 ** -149, bfloat16: 2 ** -133, float16: 2 ** -24 };

test.each(["float32", "bfloat16", "float16"] as const)(
  "one bit of one element of one rank is a difference: %s",
  async (dtype) => {
    await onMesh({ dp: 3 }, async (ctx) => {
      const createModel = (changedIndex: number, change: readonly [number, number]): Parameters => {
        const [before, after] = change;
        const values = Array.from({ length: 20_000 }, () => before);
        if (ctx.rank === 1) values[changedIndex] = after;
        return new Parameters({
          first: full(ctx, [40], 0.1, { dtype }),
          second: fromArray(ctx, values, [100, 200], { dtype }),
          empty: zeros(ctx, [0, 2], { dtype }),
          last: full(ctx, [], 2, { dtype }),
        });
      };
      const epsilon = { float32: 2 ** -23, bfloat16: 2 ** -7, float16: 2 ** -10 }[dtype];
      for (const change of [
        [0, smallest[dtype]],
        [0, -smallest[dtype]],
        [1, 1 + epsilon],
        [-60_000, 60_000],
      ] as const) {
        for (const index of [0, 8191, 8192, 19_999]) {
          using model = createModel(index, change);
          expect(await compare(ctx, model)).toMatchObject({ parameters: ["second"], ranks: [1, 2] });
        }
      }
      using equalModel = createModel(0, [3, 3]);
      expect(await compare(ctx, equalModel)).toBe(undefined);
    });
  },
);

test("a difference in a parameter of several buckets is found, in any bucket", async () => {
  await onMesh({ sp: 2 }, async (ctx) => {
    for (const index of [1, 3_276_800, 4_095_999]) {
      using model = new Parameters({
        before: zeros(ctx, [1000]),
        large: zeros(ctx, [4_096_000]),
        after: zeros(ctx, [7]),
      });
      using element = model
        .parameters()[1]!
        .detach()
        .view({ shape: [1], offset: index });
      if (ctx.rank === 1) ctx.device.kernels.fill(element, 1);
      expect(await compare(ctx, model)).toMatchObject({ parameters: ["large"], ranks: [1] });
    }
  });
});

test("frozen parameters, transposed ones, and those that are added later are compared", async () => {
  await onMesh({ sp: 2 }, async (ctx) => {
    using frozen = new Parameters({ weight: fromArray(ctx, [1, 2 + ctx.rank], [2]) });
    frozen.parameters()[0]!.requiresGrad = false;
    expect(await compare(ctx, frozen)).toMatchObject({ parameters: ["weight"] });

    const values = [1, 2, 3, 4, 5, 6];
    if (ctx.rank === 1) values[4]! += 1;
    using transposed = new Parameters({ weight: fromArray(ctx, values, [2, 3]).transpose(0, 1) });
    expect(await compare(ctx, transposed)).toMatchObject({ parameters: ["weight"] });

    using model = new Parameters({ old: zeros(ctx, [2]) });
    expect(await compare(ctx, model)).toBe(undefined);
    model.add("added", fromArray(ctx, [ctx.rank], [1]));
    expect(await compare(ctx, model)).toMatchObject({ parameters: ["added"] });
  });
});

test("a NaN, and zeros of different sign, are not differences", async () => {
  await onMesh({ sp: 2 }, async (ctx) => {
    using model = new Parameters({
      nan: full(ctx, [3], NaN),
      infinite: full(ctx, [3], Infinity),
      zero: full(ctx, [3], ctx.rank === 0 ? 0 : -0),
    });
    expect(await compare(ctx, model)).toBe(undefined);
  });
});

test.each([1, 2] as const)("stage %i compares parameters; stage 3, which stores shards, does not", async (stage) => {
  await onMesh({ dp: 2, sp: 2 }, async (ctx) => {
    const create = (): Sequential => {
      const model = new Sequential(new Linear(ctx, 4, 4));
      if (ctx.rank === 3) ctx.device.kernels.fill(model.parameters()[1]!, 9);
      return model;
    };
    using model = fullyShard(ctx, create(), { stage });
    expect(await compare(ctx, model)).toMatchObject({ parameters: ["0.bias"], ranks: [3] });
    using shardedModel = fullyShard(ctx, create(), { stage: 3 });
    expect(await compare(ctx, shardedModel)).toBe(undefined);
  });
});
