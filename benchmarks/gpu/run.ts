import { now } from "../src/case.ts";
import { budgets, type Case, type PartName, type Result } from "./bench.ts";
import type { Results } from "./results.ts";

/** How a run is bounded. */
export interface Bounds {
  /** Of the parts' budgets, how much: 1 is eight minutes for all. */
  readonly share: number;
  /** Measure also what is kept. */
  readonly again: boolean;
}

/** What became of the cases. */
export interface Outcome {
  /** Cases whose results are wrong, or that threw, with the reason. */
  readonly failed: Readonly<Record<string, string>>;
  /** For want of time; another run goes on with them. */
  readonly left: readonly string[];
}

/** Runs case after case, and keeps each result at once. A part whose time is over leaves the rest of its cases. */
export async function runCases(
  cases: readonly Case[],
  run: (one: Case) => Promise<Result>,
  results: Results,
  bounds: Bounds,
): Promise<Outcome> {
  const failed: Record<string, string> = {};
  const left: string[] = [];
  const spent = new Map<PartName, number>();
  for (const each of cases) {
    if (!bounds.again && results.byCase.has(each.name)) continue;
    const before = spent.get(each.part) ?? 0;
    if (before >= budgets[each.part] * bounds.share) {
      left.push(each.name);
      continue;
    }
    const begin = now();
    try {
      const result = await run(each);
      results.add(result);
      const wrong = (result["wrong"] ?? []) as readonly string[];
      if (wrong.length > 0) failed[each.name] = `wrong results of ${wrong.join(" and ")}`;
    } catch (error) {
      failed[each.name] = (error as Error).message;
    }
    const seconds = now() - begin;
    spent.set(each.part, before + seconds);
    console.error(`${each.name.padEnd(48)}${seconds.toFixed(1).padStart(6)} s${each.name in failed ? "  FAILED" : ""}`);
  }
  return { failed, left };
}
