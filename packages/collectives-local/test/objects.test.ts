import { setImmediate } from "node:timers/promises";
import {
  allGatherObject,
  broadcastObject,
  ClosedError,
  CollectiveMismatchError,
  type Context,
  MosaicError,
  OptionError,
  type ProcessGroup,
  runOnAllRanks,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { openRanks, type Ranks } from "./ranks.ts";

const onAll = <T>({ contexts }: Ranks, body: (ctx: Context) => Promise<T>): Promise<T[]> =>
  Promise.all(contexts.map(body));

/** Resolves to the error of each rank, or to undefined where the call succeeded. */
const errorsOf = (ranks: Ranks, body: (ctx: Context) => Promise<unknown>): Promise<unknown[]> =>
  onAll(ranks, (ctx) =>
    body(ctx).then(
      () => undefined,
      (error: unknown) => error,
    ),
  );

const totalBytesSent = ({ groups }: Ranks): number => groups.reduce((sum, group) => sum + group.traffic().bytesSent, 0);

const jsonValues: readonly unknown[] = [
  null,
  false,
  "",
  2 ** 53 - 1,
  Number.MIN_VALUE,
  [],
  {},
  { nested: [{ a: 1 }, [null, "x"]], "key with \u0000 and ü": 1 },
  "\u0000\uFEFF😀 e\u0301 日本語 \u2028",
  "\uD800 and \uDC00, two lone surrogates",
];
/** Texts whose JSON has about the size of the first message, in steps of less than three bytes. */
const boundaryTexts = Array.from({ length: 12 }, (_, i) => "ü".repeat(2) + "x".repeat(164 + i));

describe.each([1, 2, 4])("%i ranks", (size) => {
  test("allGatherObject returns the values of all ranks by rank, of any type and length", async () => {
    await using ranks = await openRanks(size);
    const cases = [...jsonValues, ...boundaryTexts];
    for (let i = 0; i < cases.length; i++) {
      const valueOf = (rank: number): unknown => cases[(i + 5 * rank) % cases.length];
      const expected = ranks.contexts.map((_, rank) => valueOf(rank));
      expect(await onAll(ranks, (ctx) => allGatherObject(ctx, valueOf(ctx.rank)))).toEqual(
        expected.map(() => expected),
      );
    }
    expect(ranks.devices.map(({ allocated }) => allocated)).toEqual(ranks.devices.map(() => 0));
  });

  test("broadcastObject returns the value of the root on every rank", async () => {
    await using ranks = await openRanks(size);
    for (const [i, value] of [...jsonValues, ...boundaryTexts].entries()) {
      const root = i % size;
      const results = await onAll(ranks, (ctx) =>
        broadcastObject(ctx.world, ctx.rank === root ? value : undefined, root),
      );
      expect(results).toEqual(results.map(() => value));
    }
    expect(ranks.devices.map(({ allocated }) => allocated)).toEqual(ranks.devices.map(() => 0));
  });

  test("texts of more than a MB, beside short ones", async () => {
    await using ranks = await openRanks(size);
    const textOf = (rank: number): string => (rank % 2 === 0 ? `${rank}ü`.repeat(400_000) : "short");
    const expected = ranks.contexts.map((_, rank) => textOf(rank));
    for (const texts of await onAll(ranks, (ctx) => allGatherObject(ctx, textOf(ctx.rank))))
      expect(texts.every((text, rank) => text === expected[rank])).toBe(true);
    const results = await onAll(ranks, (ctx) => broadcastObject(ctx, ctx.rank === 0 ? expected : undefined));
    expect(results.every((texts) => texts.every((text, rank) => text === expected[rank]))).toBe(true);
  });

  test("results are copies of the values at the call", async () => {
    await using ranks = await openRanks(size);
    await onAll(ranks, async (ctx) => {
      const value = { list: [ctx.rank], absent: undefined };
      const gathering = allGatherObject(ctx, value);
      value.list.push(9);
      expect((await gathering)[ctx.rank]).toStrictEqual({ list: [ctx.rank] });
      const broadcasting = broadcastObject(ctx, value);
      value.list.push(9);
      expect(await broadcasting).toStrictEqual({ list: [0, 9] });
    });
  });

  test("a value that is not a JSON value is rejected on every rank, and the ranks remain usable", async () => {
    await using ranks = await openRanks(size);
    const last = size - 1;
    const invalidValues = { "value.a[1]": { a: [1, Number.NaN] }, "value.f": { f: () => 1 }, value: undefined };
    for (const [path, value] of Object.entries(invalidValues)) {
      const calls = {
        allGatherObject: (ctx: Context) => allGatherObject<unknown>(ctx, ctx.rank === last ? value : 1),
        broadcastObject: (ctx: Context) => broadcastObject(ctx, ctx.rank === last ? value : undefined, last),
      };
      for (const [name, call] of Object.entries(calls)) {
        const errors = await errorsOf(ranks, call);
        expect(errors[last]).toBeInstanceOf(OptionError);
        expect(String(errors[last])).toContain(`${name}: ${path}: expected a JSON value`);
        for (const [rank, error] of errors.slice(0, last).entries()) {
          expect(error).toBeInstanceOf(MosaicError);
          expect(String(error)).toContain(
            `${name}, rank ${rank}: expected success on every rank, received a failure on rank ${last} (${name}: ${path}`,
          );
        }
      }
    }
    expect(await onAll(ranks, (ctx) => broadcastObject(ctx, ctx.rank))).toEqual(ranks.contexts.map(() => 0));
  });

  test("runOnAllRanks returns the results by rank, or rejects on all ranks", async () => {
    await using ranks = await openRanks(size);
    const expected = ranks.contexts.map((_, rank) => ({ rank }));
    const results = await onAll(ranks, (ctx) => runOnAllRanks(ctx, "load", async () => ({ rank: ctx.rank })));
    expect(results).toEqual(expected.map(() => expected));
    const noResults = await onAll(ranks, (ctx) => runOnAllRanks(ctx, "load", () => {}));
    expect(noResults).toStrictEqual(expected.map(() => expected.map(() => undefined)));

    const failures = [new RangeError("no space"), "a text", undefined, () => {}];
    for (const failure of failures) {
      const errors = await errorsOf(ranks, (ctx) =>
        // Not `async`: the call itself throws.
        runOnAllRanks(ctx, "load", () => {
          if (ctx.rank === 0) throw failure;
        }).catch((error: unknown) => {
          if (ctx.rank === 0) expect(error).toBe(failure);
          throw error;
        }),
      );
      for (const [i, error] of errors.slice(1).entries())
        expect(String(error)).toMatch(
          new RegExp(`^MosaicError: load, rank ${i + 1}: expected success on every rank, .* failure on rank 0 \\(`),
        );
    }
    const errors = await errorsOf(ranks, (ctx) => runOnAllRanks(ctx, "load", async () => new Map()));
    for (const error of errors) expect(String(error)).toMatch(/load: result: expected a JSON value.*received a Map/);
  });
});

test("one rank communicates nothing", async () => {
  await using ranks = await openRanks(1);
  const [ctx] = ranks.contexts;
  ranks.devices[0]!.empty = () => expect.unreachable();
  expect(await allGatherObject(ctx!, "x".repeat(1000))).toEqual(["x".repeat(1000)]);
  expect(await broadcastObject(ctx!, [1])).toEqual([1]);
  expect(await runOnAllRanks(ctx!, "test", () => 3)).toEqual([3]);
});

test("a closed context is rejected, also on one rank, where nothing would be sent", async () => {
  for (const size of [1, 2]) {
    const ranks = await openRanks(size);
    await onAll(ranks, (ctx) => ctx.close());
    const calls: readonly ((ctx: Context) => Promise<unknown>)[] = [
      (ctx) => allGatherObject(ctx, 1),
      (ctx) => broadcastObject(ctx, 1),
      (ctx) => runOnAllRanks(ctx, "load", () => expect.unreachable()),
    ];
    for (const call of calls)
      for (const error of await errorsOf(ranks, call)) expect(error).toBeInstanceOf(ClosedError);
  }
});

test("a closed group is rejected, also of one rank", async () => {
  for (const size of [1, 2]) {
    await using ranks = await openRanks(size);
    const calls: readonly ((group: ProcessGroup) => Promise<unknown>)[] = [
      (group) => allGatherObject(group, 1),
      (group) => broadcastObject(group, 1),
      (group) => runOnAllRanks(group, "load", () => 1),
    ];
    for (const call of calls) {
      const errors = await errorsOf(ranks, async (ctx) => {
        const group = await ctx.world.split(0);
        await group[Symbol.asyncDispose]();
        await call(group);
      });
      for (const error of errors) {
        expect(error).toBeInstanceOf(ClosedError);
        expect(String(error)).toMatch(
          /(allGatherObject|broadcastObject|load): expected an open group until the call has completed, received a closed group; await the call before the group closes$/,
        );
      }
    }
  }
});

test("a value of up to 186 bytes of JSON takes one message, a longer one takes two", async () => {
  await using ranks = await openRanks(2);
  const bytesOf = async (length: number): Promise<number> => {
    const before = totalBytesSent(ranks);
    // The JSON is {"value":"…"}, with 12 other characters.
    await onAll(ranks, (ctx) => allGatherObject(ctx, "x".repeat(length - 12)));
    return totalBytesSent(ranks) - before;
  };
  expect(await bytesOf(186)).toBe(2 * 256);
  expect(await bytesOf(187)).toBe(2 * (256 + 4));
});

test("groups of a mesh axis: ranks and the root are those of the group, errors name world ranks", async () => {
  await using ranks = await openRanks(4, { mesh: { dp: 2, sp: 2 } });
  const long = "x".repeat(500);
  expect(await onAll(ranks, (ctx) => allGatherObject(ctx.mesh.group("dp"), `${long}${ctx.rank}`))).toEqual(
    [0, 1, 0, 1].map((first) => [`${long}${first}`, `${long}${first + 2}`]),
  );
  expect(await onAll(ranks, (ctx) => broadcastObject(ctx.mesh.group("sp"), ctx.rank, 1))).toEqual([1, 1, 3, 3]);
  const errors = await errorsOf(ranks, (ctx) =>
    runOnAllRanks(ctx.mesh.group("sp"), "load", () => {
      if (ctx.rank === 3) throw new Error("broken");
    }),
  );
  expect(errors.map((error) => (error === undefined ? error : String(error)))).toEqual([
    undefined,
    undefined,
    "MosaicError: load, rank 2: expected success on every rank, received a failure on rank 3 (broken); see the error on that rank",
    "Error: broken",
  ]);
});

test("invalid arguments are rejected before anything is sent", async () => {
  await using ranks = await openRanks(2);
  const [ctx] = ranks.contexts as readonly [Context, Context];
  for (const root of [-1, 2, 0.5, Number.NaN, "0" as unknown as number])
    await expect(broadcastObject(ctx, 1, root)).rejects.toThrow(
      /^broadcastObject: root: expected a rank of the group, from 0 to 1, received /,
    );
  for (const group of [undefined, null, 3, {}, ctx.device, ctx.mesh] as unknown as readonly never[]) {
    const expected = /: group: expected a ProcessGroup or a Context from init\(\), received /;
    await expect(broadcastObject(group, 1)).rejects.toThrow(expected);
    await expect(allGatherObject(group, 1)).rejects.toThrow(expected);
    await expect(runOnAllRanks(group, "test", () => 1)).rejects.toThrow(expected);
  }
  for (const options of [{ label: 3 }, { lable: "x" }, null] as unknown as readonly never[]) {
    await expect(allGatherObject(ctx, 1, options)).rejects.toThrow(OptionError);
    await expect(broadcastObject(ctx, 1, 0, options)).rejects.toThrow(OptionError);
  }
  await expect(runOnAllRanks(ctx, 3 as unknown as string, () => 1)).rejects.toThrow(/^runOnAllRanks: where: expected/);
  await expect(runOnAllRanks(ctx, "test", 3 as unknown as () => 1)).rejects.toThrow(/^runOnAllRanks: body: expected/);
  expect(totalBytesSent(ranks)).toBe(0);
});

test("a rank that passes another root than the others rejects with a mismatch", async () => {
  const ranks = await openRanks(3);
  const errors = await errorsOf(ranks, (ctx) => broadcastObject(ctx, "x", ctx.rank === 2 ? 1 : 0));
  expect(errors[2]).toBeInstanceOf(CollectiveMismatchError);
  await Promise.allSettled(ranks.contexts.map((ctx) => ctx.close()));
});

test("a call that is not awaited does not receive the messages of the next one", async () => {
  await using ranks = await openRanks(3);
  let endBody: () => void = () => {};
  const bodyEnd = new Promise<void>((resolve) => (endBody = () => resolve()));
  const outcomes = await onAll(ranks, async (ctx) => {
    const saved = runOnAllRanks(ctx, "save", () => (ctx.rank === 0 ? bodyEnd : undefined));
    await setImmediate(); // the other ranks have posted the message of their result
    const gathered = allGatherObject(ctx, ctx.rank);
    const results = Promise.allSettled([saved, gathered]);
    if (ctx.rank === 0) await gathered.then(endBody, endBody);
    return results;
  });
  for (const [rank, results] of outcomes.entries()) {
    const sender = rank === 0 ? 1 : 0;
    for (const [i, name] of ["save", "allGatherObject"].entries()) {
      const result = results[i]!;
      const error: unknown = result.status === "rejected" ? result.reason : undefined;
      expect(error).toBeInstanceOf(CollectiveMismatchError);
      expect(String(error)).toContain(
        `${name}, rank ${rank}: expected the same call on all ranks, received a message of another call from rank ${sender}; `,
      );
    }
  }
  expect(await onAll(ranks, (ctx) => allGatherObject(ctx, ctx.rank))).toEqual(ranks.contexts.map(() => [0, 1, 2]));
});

test("messages have the label of the options, or the name of the function", async () => {
  await using ranks = await openRanks(2);
  const labels = await onAll(ranks, async (ctx) => {
    ctx.startTrace();
    await allGatherObject(ctx, 1);
    await broadcastObject(ctx, 1, 0, { label: "prompts" });
    await runOnAllRanks(ctx, "load", () => 1);
    return (await ctx.stopTrace()).map(({ label }) => label);
  });
  for (const each of labels) expect([...new Set(each)]).toEqual(["allGatherObject", "prompts", "load"]);
});

test("a rank whose call failed rejects with its error, even if another rank is lost", async () => {
  await using ranks = await openRanks(2);
  const [ctx, otherContext] = ranks.contexts as readonly [Context, Context];
  const failure = new Error("the cause");
  const running = runOnAllRanks(ctx, "test", () => Promise.reject(failure));
  await Promise.all([otherContext.close(), expect(running).rejects.toBe(failure)]);
});
