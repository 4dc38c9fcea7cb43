import type { Case } from "../case.ts";
import type { RankProgram } from "./processes.ts";
import { deathCases } from "./deaths.ts";
import { rendezvousCases } from "./rendezvous.ts";

export interface ProcessSuiteOptions extends RankProgram {
  /** Numbers of processes that run all of `collectivesSuite`. Default: 2 and 3. */
  readonly sizes?: readonly number[];
  /** Seconds within which the others must fail after a rank died. Default 2, for machines that are busy. */
  readonly noticeSeconds?: number;
  /** What the message of a rendezvous that timed out without rank 0 contains, besides. */
  readonly withoutRankZero?: RegExp;
}

/**
 * What every implementation of collectives must do for ranks that are processes of their own: all of `collectivesSuite`; name
 * a rank that dies, however it dies, or never joins, to all others, and soon; and leave no process behind. A script of yours,
 * which calls `runRank`, runs the scenarios; `openJob` sets what a launcher would put into its environment.
 *
 * @example
 * ```ts no-run
 * import { processSuite } from "@mosaic/conformance";
 * const cases = processSuite({
 *   script: new URL("build/rank.js", import.meta.url).pathname,
 *   openJob: async (size) => ({
 *     env: (rank) => ({ RANK: `${rank}`, WORLD_SIZE: `${size}`, MASTER_ADDR: "127.0.0.1", MASTER_PORT: "29500" }),
 *     async [Symbol.asyncDispose]() {},
 *   }),
 * });
 * await cases.find(({ name }) => name === "a rank that throws")!.run();
 * ```
 */
export function processSuite({
  sizes = [2, 3],
  noticeSeconds = 2,
  withoutRankZero = /rank 0/,
  ...program
}: ProcessSuiteOptions): Case[] {
  return [...rendezvousCases(program, { sizes, withoutRankZero }), ...deathCases(program, { noticeSeconds })];
}
