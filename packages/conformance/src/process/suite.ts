import type { Case } from "../case.ts";
import type { RankProgram } from "./processes.ts";
import { deathCases } from "./deaths.ts";
import { meetingCases } from "./meetings.ts";

export interface ProcessSuiteOptions extends RankProgram {
  /** Numbers of processes that run all of `collectivesSuite`. Default: 2 and 3. */
  readonly sizes?: readonly number[];
  /** Seconds within which the others must know of a rank that died. Default 2, for machines that are busy. */
  readonly noticeSeconds?: number;
  /** What a rank that waits for rank 0 in vain says besides: what to do, say. */
  readonly withoutRankZero?: RegExp;
}

/**
 * What every implementation of collectives must do for ranks that are processes of their own: all of `collectivesSuite`; name
 * a rank that dies, however it dies, or never comes, to all others, and soon; and leave no process behind. The scenarios are
 * played by a script of yours, which calls `playRank`; `openJob` says what a launcher would put into its environment.
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
  return [...meetingCases(program, { sizes, withoutRankZero }), ...deathCases(program, { noticeSeconds })];
}
