import { type Context, DisposedError, fromArray, Linear, OptionError, ShapeError } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { AdamW, NonFiniteError, type OptimizerOptions, ScheduleFreeAdamW, Sequential } from "../src/index.ts";
import { alone } from "./reference/world.ts";

const kinds = [AdamW, ScheduleFreeAdamW] as const;

function build(ctx: Context, Kind: (typeof kinds)[number], options: OptimizerOptions = {}) {
  const model = new Sequential(new Linear(ctx, 2, 3), new Linear(ctx, 3, 1));
  const optimizer = new Kind(model, options);
  const names = model.namedParameters().map(([name]) => name);
  /** Gradients of 1, but for one number of those of some parameters. */
  const gradients = (bad: Readonly<Record<string, number>> = {}): void => {
    optimizer.zeroGrad();
    for (const [name, parameter] of model.namedParameters()) {
      const values = new Float32Array(parameter.size).fill(1);
      if (name in bad) values[values.length - 1] = bad[name]!;
      parameter.grad = fromArray(ctx, values, parameter.shape);
    }
  };
  const read = () => Promise.all(model.parameters().map(async (each) => Array.from(await each.read())));
  const dispose = (): void => {
    optimizer.zeroGrad();
    optimizer.dispose();
    model[Symbol.dispose]();
  };
  return { model, optimizer, names, gradients, read, [Symbol.dispose]: dispose };
}

describe.each(kinds)("%o", (Kind) => {
  test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])(
    "stops at a gradient of %d, and names its parameter and its step",
    async (value) => {
      await alone(async (ctx) => {
        using made = build(ctx, Kind, { errorIfNonFinite: true });
        const { optimizer, names, gradients } = made;
        gradients();
        optimizer.step();
        await optimizer.assertFinite();
        gradients({ [names[1]!]: value, [names[2]!]: value });
        optimizer.step();
        const error: unknown = await optimizer.assertFinite().catch((reason: unknown) => reason);
        expect(error).toBeInstanceOf(NonFiniteError);
        expect(error).toMatchObject({ step: 1, parameters: [names[1], names[2]] });
        expect(String(error)).toMatch(new RegExp(`step 1: .*the gradient of "${names[1]}" has norm (NaN|Infinity)`));
        const before = await made.read();
        expect(() => optimizer.step()).toThrow(NonFiniteError);
        expect(() => optimizer.stateDict()).toThrow(NonFiniteError);
        expect(await made.read()).toEqual(before);
        expect(optimizer.steps).toBe(2);
      });
    },
  );

  test("stops at a loss that is not finite, and takes only a scalar", async () => {
    await alone(async (ctx) => {
      using made = build(ctx, Kind, { errorIfNonFinite: true });
      using loss = fromArray(ctx, [Number.NaN], []);
      using row = fromArray(ctx, [1, 2], [2]);
      made.gradients();
      expect(() => made.optimizer.step({ loss: row })).toThrow(ShapeError);
      made.optimizer.step({ loss });
      await expect(made.optimizer.assertFinite()).rejects.toThrow(/step 0: .*received the loss is NaN/);
    });
  });

  test("without the option nothing is measured, and with it nothing else changes", async () => {
    await alone(async (ctx) => {
      using plain = build(ctx, Kind);
      plain.gradients({ [plain.names[0]!]: Number.NaN });
      plain.optimizer.step();
      await plain.optimizer.assertFinite();
      expect(() => build(ctx, Kind, { errorIfNonFinite: 1 as never })).toThrow(/errorIfNonFinite: expected a boolean/);
      using watched = build(ctx, Kind, { errorIfNonFinite: true });
      using unwatched = build(ctx, Kind);
      unwatched.model.loadStateDict(watched.model.stateDict());
      unwatched.optimizer.loadStateDict(watched.optimizer.stateDict());
      for (const { gradients, optimizer } of [watched, unwatched]) {
        for (let step = 0; step < 3; step++) {
          gradients();
          optimizer.step();
        }
      }
      expect(await watched.read()).toEqual(await unwatched.read());
    });
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, -1])("a schedule that returns %d moves nothing", async (factor) => {
    await alone(async (ctx) => {
      using made = build(ctx, Kind, { schedule: () => factor });
      made.gradients();
      const before = await made.read();
      expect(() => made.optimizer.step()).toThrow(OptionError);
      expect(() => made.optimizer.step()).toThrow(/step 0: expected a finite learning rate lr · schedule\(step\) ≥ 0/);
      expect(await made.read()).toEqual(before);
      expect(made.optimizer.steps).toBe(0);
    });
  });

  test("a step after the model was disposed is rejected", async () => {
    await alone(async (ctx) => {
      const { model, optimizer } = build(ctx, Kind);
      model[Symbol.dispose]();
      expect(() => optimizer.step()).toThrow(DisposedError);
      expect(optimizer.steps).toBe(0);
      optimizer.dispose();
      expect(() => new Kind(model)).toThrow(DisposedError);
    });
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, -1])("a parameter's own factor of %d is rejected", async (value) => {
    await alone(async (ctx) => {
      using model = new Linear(ctx, 2, 1);
      for (const name of ["lrScale", "weightDecay"]) {
        const forParameter = () => ({ [name]: value });
        expect(() => new Kind(model, { forParameter })).toThrow(new RegExp(`${name}: expected a number ≥ 0, received`));
      }
      for (const name of ["lr", "weightDecay", "epsilon"]) {
        expect(() => new Kind(model, { [name]: value })).toThrow(
          new RegExp(`${name}: expected a number ≥ 0, received`),
        );
      }
    });
  });
});
