import { defineOptions, option, type OptionsOf } from "@mosaic/core";
import { type Case, check } from "../check.ts";
import { checkMessage } from "../failures/test-world.ts";
import { checkRankError, rankFailureCases } from "./rank-failures.ts";
import {
  processCase,
  type RankProcess,
  type RankProcesses,
  type RankProgram,
  rankProgramOptions,
} from "./processes.ts";
import { scenarioVariables } from "./run-rank.ts";

const isRegExp = (value: unknown): value is RegExp => value instanceof RegExp;

export const processSuiteOptions = defineOptions("processSuite", {
  /** Path of the module that each rank runs in Node.js. It calls `runRank`. */
  script: rankProgramOptions.fields.script,
  /** Opens the rendezvous. */
  openJob: rankProgramOptions.fields.openJob,
  /** Numbers of processes that run all of `collectivesSuite`. Default [2, 3]. */
  sizes: option.array(option.integer({ min: 1 }), { default: [2, 3] }),
  /** Seconds within which the other ranks must fail after a rank died. Busy machines need more. Default 2. */
  noticeSeconds: option.number({ above: 0, default: 2 }),
  /** Pattern that the message of a rendezvous that timed out without rank 0 must also match. Default /rank 0/. */
  withoutRankZero: option.custom("a RegExp", isRegExp, { default: /rank 0/ }),
});
/** Options of `processSuite`. */
export type ProcessSuiteOptions = OptionsOf<typeof processSuiteOptions>;

/**
 * Returns test cases that every implementation of collectives must pass with ranks in separate processes. All of
 * `collectivesSuite` must pass. A rank that dies in any way, or never joins, must be reported to all other ranks soon.
 * No process may remain. A custom script that calls `runRank` runs the scenarios; `openJob` provides the variables that
 * a launcher would set in its environment.
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
 * await cases.find(({ name }) => name === "a rank that throws an error is reported")!.run();
 * ```
 */
export function processSuite(options: ProcessSuiteOptions): Case[] {
  const {
    sizes,
    noticeSeconds,
    withoutRankZero: missingRankZeroPattern,
    ...program
  } = processSuiteOptions.parse(options);
  return [
    ...rendezvousCases(program, { sizes, missingRankZeroPattern }),
    ...rankFailureCases(program, { noticeSeconds }),
  ];
}

interface RendezvousOptions {
  readonly sizes: readonly number[];
  readonly missingRankZeroPattern: RegExp;
}

/** Returns cases of rendezvous that succeed and that fail. */
function rendezvousCases(program: RankProgram, { sizes, missingRankZeroPattern }: RendezvousOptions): Case[] {
  return [
    ...sizes.map((size) =>
      processCase(program, `${size} processes: all collectives and all ordering guarantees`, async (processes) =>
        checkAllPass(await processes.startAll(size, "conforms")),
      ),
    ),
    processCase(program, "ranks that do not connect are reported by the connected ranks", checkMissingRank),
    processCase(program, "a rank 0 that does not connect is reported", (processes) =>
      checkRankZeroMissing(processes, missingRankZeroPattern),
    ),
    processCase(program, "a rank that exits during the rendezvous can be replaced", checkReplacedRank),
    processCase(program, "mismatched world sizes are reported", checkWorldSizeMismatch),
  ];
}

async function checkAllPass(ranks: readonly RankProcess[]): Promise<void> {
  for (const rank of ranks) {
    const { cases } = await rank.waitForEvent("conforms");
    check((cases as number) > 40, `expected more than 40 cases, received ${cases}`);
  }
  for (const rank of ranks) await rank.waitForEvent("closed");
  const exitStatuses = await Promise.all(ranks.map((rank) => rank.exitStatus));
  check(
    exitStatuses.every((end) => end === 0),
    `expected exit code 0 on all ranks, received ${exitStatuses}`,
  );
}

async function checkMissingRank(processes: RankProcesses): Promise<void> {
  const job = await processes.openJob(4);
  const waitingRank = processes.start("conforms", job.env(2));
  await waitingRank.waitForEvent("connecting");
  const rankZero = processes.start("conforms", { ...job.env(0), [scenarioVariables.connectTimeout]: "1" });
  for (const failure of await Promise.all([rankZero, waitingRank].map((rank) => rank.waitForEvent("failed")))) {
    checkRankError(failure, "CollectiveTimeoutError", /rendezvous timed out after 1 s: ranks 1, 3 of 4 are missing/);
  }
}

async function checkRankZeroMissing(processes: RankProcesses, message: RegExp): Promise<void> {
  const job = await processes.openJob(2);
  const rank = processes.start("conforms", { ...job.env(1), [scenarioVariables.connectTimeout]: "0.3" });
  const failure = await rank.waitForEvent("failed");
  checkRankError(failure, "CollectiveTimeoutError", /rendezvous timed out after 0\.3 s/);
  checkRankError(failure, "CollectiveTimeoutError", message);
}

async function checkReplacedRank(processes: RankProcesses): Promise<void> {
  const job = await processes.openJob(2);
  const replacedRank = processes.start("conforms", job.env(1));
  await replacedRank.waitForEvent("connecting");
  replacedRank.kill();
  await replacedRank.exitStatus;
  await checkAllPass([0, 1].map((rank) => processes.start("conforms", job.env(rank))));
}

async function checkWorldSizeMismatch(processes: RankProcesses): Promise<void> {
  const job = await processes.openJob(2);
  processes.start("conforms", job.env(0));
  const otherRank = processes.start("conforms", { ...job.env(1), WORLD_SIZE: "3", LOCAL_WORLD_SIZE: "3" });
  const failure = await otherRank.waitForEvent("failed");
  checkMessage(
    String(failure.message),
    /WORLD_SIZE mismatch: [23] on rank [01], [23] on rank [01]; set the same WORLD_SIZE/,
  );
}
