import * as core from "@mosaic/core";
import type { Fixture } from "./fixture.ts";

/** A seeded generator of numbers in [0, 1) (mulberry32). */
export type Random = () => number;

export function createRandom(seed: number): Random {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function pick<T>(random: Random, choices: readonly T[]): T {
  return choices[Math.floor(random() * choices.length)]!;
}

const primitives: readonly unknown[] = [
  ...[undefined, null, true, false, "", "/nonexistent/name", "\0", 10n, Symbol("wrong")],
  ...[Number.NaN, Infinity, -Infinity, -1, -0.5, 0, 0.5, 1, 3, 100, 2 ** 31, 2 ** 40, 2 ** 53, 1e300],
];

/** Creates a value that might be passed by mistake. Mutable values are created anew. */
export function createWrongValue(
  random: Random,
  { ctx, disposedTensor, foreignTensor, closedContext, tensor }: Fixture,
): unknown {
  if (random() < 0.5) return pick(random, primitives);
  const valueFactories: readonly (() => unknown)[] = [
    () => ({}),
    () => ({ length: 2 }),
    () => Object.create(null),
    () => ({ wrong: 1 }),
    () => [],
    () => [1, 2],
    () => ["a"],
    () => [null],
    () => [[]],
    () => new Array(3),
    () => new Map(),
    () => new Map([["x", 1]]),
    () => new Date(0),
    () => new Float32Array(2),
    () => () => {},
    () => () => 1,
    () => Promise.resolve(1),
    () => disposedTensor,
    () => foreignTensor,
    () => tensor(),
    () => tensor(3, 5),
    () => tensor(1, 2, 3, 4, 5),
    () => tensor(0, 4),
    () => core.zeros(ctx, [2, 4], { dtype: "bfloat16" }),
    () => closedContext,
    () => ctx,
    () => ctx.device,
    () => core.masks.causal(),
    () => core.zigzag(),
    () => core.local(),
  ];
  return pick(random, valueFactories)();
}

/**
 * Returns valid arguments with one error: a wrong argument, a wrong field or element of one, or a wrong number of
 * arguments.
 */
export function mutateArguments(random: Random, fixture: Fixture, validArgs: readonly unknown[]): unknown[] {
  const args = [...validArgs];
  const argumentIndex = Math.floor(random() * Math.max(1, args.length));
  const mutationChoice = random();
  if (args.length === 0 || mutationChoice < 0.05)
    return [...args, createWrongValue(random, fixture), createWrongValue(random, fixture)];
  if (mutationChoice < 0.15) return args.slice(0, argumentIndex);
  if (mutationChoice < 0.2) return args.map(() => createWrongValue(random, fixture));
  args[argumentIndex] =
    mutationChoice < 0.6 ? mutateNested(random, fixture, args[argumentIndex]) : createWrongValue(random, fixture);
  return args;
}

/**
 * Returns a copy of a plain object or an array with a wrong field or element at any depth; for other values, a wrong
 * value.
 */
function mutateNested(random: Random, fixture: Fixture, value: unknown, depth = 0): unknown {
  if (Array.isArray(value) && value.length > 0) {
    const copy: unknown[] = [...(value as readonly unknown[])];
    const elementIndex = Math.floor(random() * copy.length);
    copy[elementIndex] = mutateField(random, fixture, copy[elementIndex], depth);
    return copy;
  }
  if (value instanceof Map && value.size > 0) {
    const [name] = value.keys() as Iterable<unknown>;
    return new Map(value as ReadonlyMap<unknown, unknown>).set(
      name,
      mutateField(random, fixture, value.get(name), depth),
    );
  }
  // Results of functions have no fields that callers set.
  const isOpaque = [fixture.record, fixture.simulation, fixture.meta].includes(value as never);
  if (isOpaque || !isPlain(value)) return createWrongValue(random, fixture);
  const names = [...Object.keys(value), "unknownOption"];
  const name = pick(random, names);
  const copy: Record<string, unknown> = { ...value };
  if (random() < 0.1) delete copy[name];
  else copy[name] = mutateField(random, fixture, copy[name], depth);
  return copy;
}

function mutateField(random: Random, fixture: Fixture, value: unknown, depth: number): unknown {
  return depth < 3 && random() < 0.5
    ? mutateNested(random, fixture, value, depth + 1)
    : createWrongValue(random, fixture);
}

function isPlain(value: unknown): value is Readonly<Record<string, unknown>> {
  if (typeof value !== "object" || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
