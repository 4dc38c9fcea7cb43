import { type Context, DisposedError, fromArray, Linear, OptionError, ShapeError } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { AdamW, NonFiniteError, type OptimizerOptions, ScheduleFreeAdamW, Sequential } from "../src/index.ts";
import { onOneRank } from "./reference/world.ts";

const kinds = [AdamW, ScheduleFreeAdamW] as const;

function buildTraining(ctx: Context, Kind: (typeof kinds)[number], options: OptimizerOptions = {}) {
  const model = new Sequential(new Linear(ctx, 2, 3), new Linear(ctx, 3, 1));
  const optimizer = new Kind(model, options);
  const names = model.namedParameters().map(([name]) => name);
  /** Sets all gradients to 1, except for the last element of those of the given parameters. */
  const setGradients = (badValues: Readonly<Record<string, number>> = {}): void => {
    optimizer.zeroGrad();
    for (const [name, parameter] of model.namedParameters()) {
      const values = new Float32Array(parameter.size).fill(1);
      if (name in badValues) values[values.length - 1] = badValues[name]!;
      parameter.grad = fromArray(ctx, values, parameter.shape);
    }
  };
  const readParameters = () => Promise.all(model.parameters().map(async (each) => Array.from(await each.read())));
  const dispose = (): void => {
    optimizer.zeroGrad();
    optimizer.dispose();
    model[Symbol.dispose]();
  };
  return { model, optimizer, names, gradients: setGradients, read: readParameters, [Symbol.dispose]: dispose };
}

describe.each(kinds)("%o", (Kind) => {
  test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])(
    "reports a gradient of %d with its parameter and step, and rejects further steps",
    async (value) => {
      await onOneRank(async (ctx) => {
        using training = buildTraining(ctx, Kind, { errorIfNonFinite: true });
        const { optimizer, names, gradients } = training;
        gradients();
        optimizer.step();
        await optimizer.assertFinite();
        gradients({ [names[1]!]: value, [names[2]!]: value });
        optimizer.step();
        const error: unknown = await optimizer.assertFinite().catch((reason: unknown) => reason);
        expect(error).toBeInstanceOf(NonFiniteError);
        expect(error).toMatchObject({ step: 1, parameters: [names[1], names[2]] });
        expect(String(error)).toMatch(new RegExp(`step 1: .*the gradient of "${names[1]}" has norm (NaN|Infinity)`));
        const parametersBefore = await training.read();
        expect(() => optimizer.step()).toThrow(NonFiniteError);
        expect(() => optimizer.stateDict()).toThrow(NonFiniteError);
        expect(await training.read()).toEqual(parametersBefore);
        expect(optimizer.steps).toBe(2);
      });
    },
  );

  test("reports a loss that is not finite, and rejects a loss that is not a scalar", async () => {
    await onOneRank(async (ctx) => {
      using made = buildTraining(ctx, Kind, { errorIfNonFinite: true });
      using loss = fromArray(ctx, [Number.NaN], []);
      using row = fromArray(ctx, [1, 2], [2]);
      made.gradients();
      expect(() => made.optimizer.step({ loss: row })).toThrow(ShapeError);
      made.optimizer.step({ loss });
      await expect(made.optimizer.assertFinite()).rejects.toThrow(/step 0: .*received the loss is NaN/);
    });
  });

  test("checks nothing without errorIfNonFinite, and gives the same parameters with it", async () => {
    await onOneRank(async (ctx) => {
      using uncheckedTraining = buildTraining(ctx, Kind);
      uncheckedTraining.gradients({ [uncheckedTraining.names[0]!]: Number.NaN });
      uncheckedTraining.optimizer.step();
      await uncheckedTraining.optimizer.assertFinite();
      expect(() => buildTraining(ctx, Kind, { errorIfNonFinite: 1 as never })).toThrow(
        /errorIfNonFinite: expected a boolean/,
      );
      using checkedTraining = buildTraining(ctx, Kind, { errorIfNonFinite: true });
      using defaultTraining = buildTraining(ctx, Kind);
      defaultTraining.model.loadStateDict(checkedTraining.model.stateDict());
      defaultTraining.optimizer.loadStateDict(checkedTraining.optimizer.stateDict());
      for (const { gradients, optimizer } of [checkedTraining, defaultTraining]) {
        for (let step = 0; step < 3; step++) {
          gradients();
          optimizer.step();
        }
      }
      expect(await checkedTraining.read()).toEqual(await defaultTraining.read());
    });
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, -1])(
    "rejects a schedule that returns %d, and changes no parameter",
    async (factor) => {
      await onOneRank(async (ctx) => {
        using made = buildTraining(ctx, Kind, { schedule: () => factor });
        made.gradients();
        const parametersBefore = await made.read();
        expect(() => made.optimizer.step()).toThrow(OptionError);
        expect(() => made.optimizer.step()).toThrow(
          /step 0: expected a finite learning rate lr · schedule\(step\) ≥ 0/,
        );
        expect(await made.read()).toEqual(parametersBefore);
        expect(made.optimizer.steps).toBe(0);
      });
    },
  );

  test("rejects a step after the model was disposed", async () => {
    await onOneRank(async (ctx) => {
      const { model, optimizer } = buildTraining(ctx, Kind);
      model[Symbol.dispose]();
      expect(() => optimizer.step()).toThrow(DisposedError);
      expect(optimizer.steps).toBe(0);
      optimizer.dispose();
      expect(() => new Kind(model)).toThrow(DisposedError);
    });
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, -1])(
    "rejects options and factors of single parameters of %d",
    async (value) => {
      await onOneRank(async (ctx) => {
        using model = new Linear(ctx, 2, 1);
        for (const name of ["lrScale", "weightDecay"]) {
          const forParameter = () => ({ [name]: value });
          expect(() => new Kind(model, { forParameter })).toThrow(
            new RegExp(`${name}: expected a number ≥ 0, received`),
          );
        }
        for (const name of ["lr", "weightDecay", "epsilon"]) {
          expect(() => new Kind(model, { [name]: value })).toThrow(
            new RegExp(`${name}: expected a number ≥ 0, received`),
          );
        }
      });
    },
  );
});

test.each([
  [1, ""],
  [5, ""],
  [6, ", and 1 more gradient"],
  [7, ", and 2 more gradients"],
])("the error for %i gradients lists at most five", (count, ending) => {
  const norms = Array.from({ length: count }, (_, i) => ({ name: `p${i}`, norm: Number.NaN }));
  const { message, parameters } = new NonFiniteError("AdamW", { step: 3, loss: undefined, norms });
  const listed = norms.slice(0, 5).map(({ name }) => `the gradient of "${name}" has norm NaN`);
  expect(message).toContain(
    `AdamW, step 3: expected a finite loss and finite gradients, received ${listed.join(", ")}${ending};`,
  );
  expect(parameters).toEqual(norms.map(({ name }) => name));
});
