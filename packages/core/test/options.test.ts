import fc from "fast-check";
import { describe, expect, expectTypeOf, test } from "vitest";
import { formatValue, OptionError } from "../src/errors.ts";
import { causal } from "../src/mask/index.ts";
import * as option from "../src/option.ts";
import { checkArgument, defineOptions, type OptionsOf, type ResolvedOptionsOf } from "../src/options.ts";
import { zigzag } from "../src/placement/placement.ts";

const rangeOptions = defineOptions("within", { head: option.integer({ min: 1 }), seq: option.integer({ default: 1 }) });
const layerOptions = defineOptions("layer", {
  size: option.integer({ min: 1, max: 64 }),
  rate: option.number({ min: 0, below: 1, default: 0.5 }),
  kind: option.oneOf(["soft", "exact"], { optional: true }),
  betas: option.pair(option.number({ min: 0 }), { default: [0.9, 0.99] }),
  axes: option.array(option.string(), { optional: true }),
  top: option.either(option.integer({ min: 0 }), option.oneOf(["all"]), { default: "all" }),
  axis: option.nullable(option.integer(), { optional: true }),
  where: option.nested(rangeOptions, { optional: true }),
  f: option.custom("a function of the step", option.isFunction<(step: number) => number>, { optional: true }),
});
type LayerOptions = OptionsOf<typeof layerOptions>;

describe("defineOptions", () => {
  test("creates a type that rejects numbers, strings and arrays even if all options are optional", () => {
    const drawOptions = defineOptions("draw", {
      seed: option.integer({ optional: true }),
      mean: option.number({ default: 0 }),
    });
    const parseSeed = (givenOptions?: OptionsOf<typeof drawOptions>): number | undefined =>
      drawOptions.parse(givenOptions).seed;
    expect(parseSeed({ seed: 3 })).toBe(3);
    // @ts-expect-error -- a number
    expect(() => parseSeed(3)).toThrow(OptionError);
    // @ts-expect-error -- a text
    expect(() => parseSeed("3")).toThrow(OptionError);
    // @ts-expect-error -- an array
    expect(() => parseSeed([3])).toThrow(OptionError);
  });

  test("infers the types of given and of parsed options", () => {
    expectTypeOf<LayerOptions["size"]>().toEqualTypeOf<number>();
    expectTypeOf<LayerOptions>().toExtend<{
      readonly rate?: number | undefined;
      readonly kind?: "soft" | "exact" | undefined;
    }>();
    expectTypeOf<{ readonly size: number }>().toExtend<LayerOptions>();
    expectTypeOf<{ readonly rate: number }>().not.toExtend<LayerOptions>();
    type ParsedLayerOptions = ResolvedOptionsOf<typeof layerOptions>;
    expectTypeOf<ParsedLayerOptions["rate"]>().toEqualTypeOf<number>();
    expectTypeOf<ParsedLayerOptions["kind"]>().toEqualTypeOf<"soft" | "exact" | undefined>();
    expectTypeOf<ParsedLayerOptions["top"]>().toEqualTypeOf<number | "all">();
    expectTypeOf<ParsedLayerOptions["axis"]>().toEqualTypeOf<number | null | undefined>();
    expectTypeOf<ParsedLayerOptions["betas"]>().toEqualTypeOf<readonly [number, number]>();
  });

  test("fills in defaults and leaves other optional fields undefined", () => {
    const unsetOptions = { kind: undefined, axes: undefined, axis: undefined, where: undefined, f: undefined };
    expect(layerOptions.parse({ size: 3 })).toEqual({
      size: 3,
      rate: 0.5,
      betas: [0.9, 0.99],
      top: "all",
      ...unsetOptions,
    });
    expect(layerOptions.parse({ size: 3, rate: undefined }).rate).toBe(0.5);
    expect(layerOptions.parse({ size: 3, axis: null, top: 2 })).toMatchObject({ axis: null, top: 2 });
  });

  test("returns the same frozen object for calls without options", () => {
    const normOptions = defineOptions("norm", { epsilon: option.number({ min: 0, default: 1e-5 }) });
    expect(normOptions.parse(undefined)).toBe(normOptions.parse(undefined));
    expect(Object.isFrozen(normOptions.parse(undefined))).toBe(true);
    expect(normOptions.parse({ epsilon: 0 })).toEqual({ epsilon: 0 });
    expect(normOptions.parse(undefined)).toEqual({ epsilon: 1e-5 });
  });

  const invalidOptions: [options: unknown, message: string][] = [
    [undefined, "layer: expected an options object with size, received undefined"],
    [null, "layer: expected an options object with size, received null"],
    [7, "layer: expected an options object with size, received 7"],
    [[1], "layer: expected an options object with size, received [1]"],
    [
      Object.assign(new Error("x"), { lr: 1 }),
      'layer: expected options among size, rate, kind, betas, axes, top, axis, where, f, received an Error with "lr"',
    ],
    [{}, "layer: size: expected an integer from 1 to 64, received undefined"],
    [{ size: "3" }, 'layer: size: expected an integer from 1 to 64, received "3"'],
    [{ size: 65 }, "layer: size: expected an integer from 1 to 64, received 65"],
    [{ size: 1, rate: 1 }, "layer: rate: expected a number ≥ 0 and < 1, received 1"],
    [{ size: 1, rate: Number.NaN }, "layer: rate: expected a number ≥ 0 and < 1, received NaN"],
    [{ size: 1, kind: "hard" }, 'layer: kind: expected "soft" or "exact", received "hard"'],
    [{ size: 1, betas: [1] }, "layer: betas: expected an array of length 2, each element a number ≥ 0, received [1]"],
    [{ size: 1, axes: ["a", 1] }, 'layer: axes: expected an array, each element a string, received ["a",1]'],
    // oxlint-disable-next-line no-sparse-arrays -- `every` skips a gap
    [{ size: 1, axes: ["a", , "b"] }, 'layer: axes: expected an array, each element a string, received ["a",,"b"]'],
    [{ size: 1, top: -1 }, 'layer: top: expected an integer ≥ 0, or "all", received -1'],
    [{ size: 1, axis: "1" }, 'layer: axis: expected an integer, or null, received "1"'],
    [{ size: 1, f: 3 }, "layer: f: expected a function of the step, received 3"],
    [{ size: 1, where: 2 }, "layer: where: expected { head, seq }, received 2"],
    [{ size: 1, where: { head: 0 } }, "layer: where: head: expected an integer ≥ 1, received 0"],
    [{ size: 1, where: { head: 1, tail: 1 } }, 'layer: where: expected options among head, seq, received "tail"'],
  ];
  test.each(invalidOptions)("rejects %j", (options, message) => {
    expect(() => layerOptions.parse(options)).toThrow(OptionError);
    expect(() => layerOptions.parse(options)).toThrow(message);
  });

  test("lists the valid names for an unknown option before other errors, under the given name", () => {
    const message = /^Other: expected options among size, rate, .*, f, received "sise", "toString"$/;
    expect(() => layerOptions.parse({ sise: 1, toString: 1, rate: 7 }, "Other")).toThrow(message);
  });

  test("supports shared fields, custom expectations and remedies", () => {
    const widerOptions = defineOptions("wider", {
      device: option.custom("a device", option.hasMethods<{ read: () => void }>("read"), { remedy: "pass cpu()" }),
      ...rangeOptions.fields,
      rate: option.number({ above: 0, expected: "seconds, more than 0", default: 1 }),
    });
    expect(() => widerOptions.parse({ head: 1 })).toThrow(
      "wider: device: expected a device, received undefined; pass cpu()",
    );
    const device = { read() {} };
    expect(() => widerOptions.parse({ device, head: 1, rate: 0 })).toThrow(
      /rate: expected seconds, more than 0, received 0/,
    );
    expect(widerOptions.parse({ device, head: 2 })).toEqual({ device, head: 2, seq: 1, rate: 1 });
  });
});

describe("option kinds", () => {
  test("describe and check ranges of numbers", () => {
    const stringValues = [
      option.number(),
      option.number({ min: 0 }),
      option.number({ above: 0 }),
      option.number({ above: 0, below: 1 }),
      option.number({ min: 0, max: 1 }),
      option.number({ max: 1 }),
      option.integer(),
      option.integer({ min: 1 }),
    ].map(({ expected }) => expected);
    expect(stringValues).toEqual([
      "a finite number",
      "a number ≥ 0",
      "a number > 0",
      "a number above 0 and below 1",
      "a number from 0 to 1",
      "a number ≤ 1",
      "an integer",
      "an integer ≥ 1",
    ]);
    fc.assert(
      fc.property(fc.double(), fc.double(), fc.double(), (min, below, value) => {
        const isInRange = Number.isFinite(value) && value >= min && value < below;
        expect(option.number({ min, below }).accepts(value)).toBe(isInRange);
        expect(option.number({ above: min, max: below }).accepts(value)).toBe(
          Number.isFinite(value) && value > min && value <= below,
        );
      }),
    );
  });

  test("check the arguments of attention", () => {
    expect([causal(), "causal", {}, null].map((each) => option.mask().accepts(each))).toEqual([
      true,
      false,
      false,
      false,
    ]);
    expect([zigzag(), "zigzag", "spiral", 1].map((each) => option.placement().accepts(each))).toEqual([
      true,
      true,
      false,
      false,
    ]);
    expect(option.meshShape().accepts({ sp: 2 })).toBe(true);
    expect(option.meshShape().accepts({ sp: 2n })).toBe(false);
    expect(option.layout().accepts({ axes: [], spans: () => [] })).toBe(true);
    expect(option.layout().accepts({ spans: () => [] })).toBe(false);
    expect(option.dtype().accepts("float64")).toBe(false);
  });

  test("check arguments outside of an options object", () => {
    expect(() => checkArgument("Linear: inFeatures", 0, option.integer({ min: 1 }))).toThrow(
      "Linear: inFeatures: expected an integer ≥ 1, received 0",
    );
    checkArgument("Linear: inFeatures", 1, option.integer({ min: 1 }));
  });
});

test("formatValue formats any value as short text and does not throw", () => {
  const invalidValues = [
    Object.create(null),
    Symbol("x"),
    10n,
    new Proxy(
      {},
      {
        getPrototypeOf: () => {
          throw new Error("no");
        },
      },
    ),
  ];
  expect(invalidValues.map(formatValue)).toEqual(["an empty object", "Symbol(x)", "10n", "an object"]);
  expect(formatValue("a".repeat(100))).toHaveLength(63);
  fc.assert(
    fc.property(fc.anything({ withBigInt: true, withSparseArray: true, withNullPrototype: true }), (value) => {
      expect(formatValue(value).length).toBeLessThan(600);
    }),
  );
});
