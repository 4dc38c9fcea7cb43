import { inspect } from "node:util";
import { MosaicError } from "@mosaic/core";
import { expect, test } from "vitest";
import { type Fixture, openFixture, openShared } from "./untyped/fixture.ts";
import { type Target, targetsOf } from "./untyped/targets.ts";
import { mutated, randomOf } from "./untyped/wrong.ts";

const modules = {
  core: "@mosaic/core",
  "context-parallel": "@mosaic/core/context-parallel",
  nn: "@mosaic/nn",
  meta: "@mosaic/meta-attention",
  strategies: "@mosaic/strategies",
  plan: "@mosaic/strategies/plan",
  planner: "@mosaic/planner",
  "backend-ring": "@mosaic/backend-ring",
  "backend-mesh2d": "@mosaic/backend-mesh2d",
  "backend-ulysses": "@mosaic/backend-ulysses",
  "collectives-local": "@mosaic/collectives-local",
  "kernels-cpu": "@mosaic/kernels-cpu",
  attention: "@mosaic/attention",
};

const CALLS = 10_000;
const SEED = 20_261_122;
const MIB = 2 ** 20;

/** What is left out, each with the reason. */
const excluded: readonly (readonly [name: RegExp, why: string])[] = [
  [/^core\.(Storage|GradNode)\b/, "counts references: for devices and operations, whose calls follow one another"],
  [/\.(SelfAttention|CheckedGroup|Optimizer|Module)$/, "abstract"],
  [/Attention(2D)?\.(layout|attend)$|CheckedGroup\./, "protected: for subclasses"],
  [/AdamW\.(checkState|numbers|setNumbers|stepOf)$/, "protected: for subclasses"],
];

/** Resolves to what a call came to: an error, or nothing. Disposes what it returned. */
async function outcomeOf(call: () => unknown): Promise<unknown> {
  try {
    const result = await withLimit(call());
    await release(result);
    return undefined;
  } catch (error) {
    return error ?? new Error("nothing was thrown");
  }
}

async function withLimit(result: unknown): Promise<unknown> {
  if (typeof (result as PromiseLike<unknown> | null | undefined)?.then !== "function") return result;
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("neither resolved nor rejected within 5 s")), 5000);
  });
  try {
    return await Promise.race([result, late]);
  } finally {
    clearTimeout(timer);
  }
}

async function release(value: unknown): Promise<void> {
  if (typeof value !== "object" || value === null) return;
  const each = Array.isArray(value) ? (value as readonly unknown[]) : [value];
  for (const one of each) {
    const { [Symbol.asyncDispose]: close, [Symbol.dispose]: dispose } = (one ?? {}) as Partial<AsyncDisposable & Disposable>;
    if (close) await close.call(one);
    else dispose?.call(one);
  }
}

/** Mosaic's errors, and the system's where a file cannot be read or written. */
function isExpected(error: unknown): boolean {
  if (error === undefined || error instanceof MosaicError) return true;
  return error instanceof Error && typeof (error as NodeJS.ErrnoException).syscall === "string";
}

test("report", { timeout: 300_000 }, async () => {
  await using shared = await openShared();
  let fixture: Fixture = await openFixture(shared);
  const all = (await targetsOf(modules, fixture)).filter(({ name }) => !excluded.some(([pattern]) => pattern.test(name)));
  const noRight: string[] = [];
  for (const target of all) {
    fixture = await openFixture(shared);
    const error = await outcomeOf(async () => target.call(fixture, await target.right(fixture)));
    if (error !== undefined) noRight.push(`${target.name}: ${String(error).slice(0, 160)}`);
    await fixture[Symbol.asyncDispose]();
  }
  console.log(`${all.length} targets, ${noRight.length} without a right call:\n${noRight.join("\n")}`);
  const faults = new Map<string, number>();
  const only = process.env.ONLY ? new RegExp(process.env.ONLY) : undefined;
  const per = Number(process.env.PER ?? 30);
  for (const target of all) {
    if (only && !only.test(target.name)) continue;
    fixture = await openFixture(shared);
    const random = randomOf(SEED);
    const start = performance.now();
    for (let i = 0; i < per; i++) {
      let args: readonly unknown[] = [];
      const error = await outcomeOf(async () => {
        args = mutated(random, fixture, await target.right(fixture));
        return target.call(fixture, args);
      });
      if (isExpected(error)) continue;
      const e = error as Error;
      const at = (e.stack ?? "").split("\n").find((l) => l.includes("/dist/")) ?? "";
      const key = `${target.name} | ${String(error).slice(0, 110)} | ${at.replace(/.*packages\//, "")}`;
      if (!faults.has(key)) console.log(`${key}   <- ${inspect(args, { depth: 1, breakLength: 200 }).slice(0, 0)}`);
      faults.set(key, (faults.get(key) ?? 0) + 1);
    }
    const took = performance.now() - start;
    if (took > 1000) console.log(`SLOW ${target.name} ${took.toFixed(0)} ms`);
    await fixture[Symbol.asyncDispose]().catch((error) => console.log("CLOSE", target.name, String(error)));
  }
  console.log(`${faults.size} faults`);
  void [CALLS, MIB, expect];
});
