import { type Case, check } from "../check.ts";
import { checkMessage } from "../failures/test-world.ts";
import {
  processCase,
  type Environment,
  type RankEvent,
  type RankProcess,
  type RankProcesses,
  type RankProgram,
} from "./processes.ts";
import { scenarioVariables } from "./run-rank.ts";

export interface RankFailureOptions {
  readonly noticeSeconds: number;
}

/** Returns cases in which one of three ranks fails. The others must report it and exit. */
export function rankFailureCases(program: RankProgram, { noticeSeconds }: RankFailureOptions): Case[] {
  return [
    processCase(program, "a killed rank is reported at once, and all ranks exit", (processes) =>
      checkKilledRank(processes, { failingRank: 1, noticeSeconds }),
    ),
    processCase(program, "a killed rank 0, which hosts the rendezvous, is reported", (processes) =>
      checkKilledRank(processes, { failingRank: 0, noticeSeconds }),
    ),
    processCase(program, "a rank that exits early is reported", (processes) => checkEarlyClose(processes, "exits")),
    processCase(program, "a rank that closes early is reported", (processes) => checkEarlyClose(processes, "leaves")),
    processCase(program, "a rank that throws an error is reported", checkThrownError),
    processCase(program, "a rank that exceeds the timeout: the error lists the position of each rank", checkTimeout),
    processCase(program, "mismatched shapes between processes are reported", checkMismatchedShapes),
    processCase(
      program,
      "mismatched recorded calls between processes are reported at a barrier",
      checkMismatchedRecords,
    ),
    processCase(program, "mismatched recorded calls between processes are reported at close", checkMismatchAtClose),
  ];
}

interface FailedRun {
  readonly ranks: readonly RankProcess[];
  /** Process ID of the failing rank. */
  readonly pid: number;
  /** Errors of the other ranks. */
  readonly failures: readonly RankEvent[];
  readonly seconds: number;
}

async function failOneRank(
  processes: RankProcesses,
  scenario: string,
  {
    failingRank = 1,
    environment: extraEnvironment = {},
  }: { readonly failingRank?: number; readonly environment?: Environment } = {},
): Promise<FailedRun> {
  const ranks = await processes.startAll(3, scenario, {
    [scenarioVariables.failingRank]: String(failingRank),
    ...extraEnvironment,
  });
  const readyEvents = await Promise.all(ranks.map((rank) => rank.waitForEvent("ready")));
  const startTime = performance.now();
  ranks[failingRank]!.proceed();
  const otherRanks = ranks.filter((_, rank) => rank !== failingRank);
  const failures = await Promise.all(otherRanks.map((rank) => rank.waitForEvent("failed")));
  return {
    ranks,
    pid: readyEvents[failingRank]!.pid as number,
    failures,
    seconds: (performance.now() - startTime) / 1000,
  };
}

async function checkKilledRank(
  processes: RankProcesses,
  { failingRank, noticeSeconds }: RankFailureOptions & { readonly failingRank: number },
) {
  const { ranks, pid, failures, seconds } = await failOneRank(processes, "is killed", { failingRank });
  const peerLostPattern = `step 3: rank ${failingRank} \\(pid ${pid}( on \\S+)?\\) died; rank [0-2] needed it in allReduce #2 \\(world\\)`;
  for (const failure of failures) checkRankError(failure, "PeerLostError", new RegExp(`^${peerLostPattern}$`));
  check(seconds < noticeSeconds, `the other ranks failed after ${seconds} s, expected less than ${noticeSeconds} s`);
  await checkExitStatuses(
    ranks,
    ranks.map((_, rank) => (rank === failingRank ? "SIGKILL" : 0)),
  );
}

const earlyExitPattern =
  /^step 3: rank 1 (exited after barrier #1 \(world\)|\(pid \d+( on \S+)?\) died); rank [02] needed it in allReduce #2 /;

async function checkEarlyClose(processes: RankProcesses, scenario: string): Promise<void> {
  const { ranks, failures } = await failOneRank(processes, scenario);
  for (const failure of failures) checkRankError(failure, "PeerLostError", earlyExitPattern);
  await checkExitStatuses(ranks, [0, 0, 0]);
}

async function checkThrownError(processes: RankProcesses): Promise<void> {
  const { ranks, failures } = await failOneRank(processes, "throws");
  for (const failure of failures) checkRankError(failure, "PeerLostError", earlyExitPattern);
  checkRankError(await ranks[1]!.waitForEvent("failed"), "Error", /^the loss is NaN$/);
  await checkExitStatuses(ranks, [0, 0, 0]);
}

async function checkTimeout(processes: RankProcesses): Promise<void> {
  const { failures } = await failOneRank(processes, "is late", { environment: { [scenarioVariables.timeout]: "1" } });
  for (const failure of failures) {
    const { message } = checkRankError(
      failure,
      "CollectiveTimeoutError",
      /^step 3: timed out after 1 s: rank [02] waits in allReduce #2 \(world\)/,
    );
    checkMessage(message, "rank 1 is in no collective, last collective: barrier #1 (world)");
  }
}

async function checkMismatchedShapes(processes: RankProcesses): Promise<void> {
  const ranks = await processes.startAll(3, "differs", { [scenarioVariables.failingRank]: "1" });
  for (const failure of await Promise.all(ranks.map((rank) => rank.waitForEvent("failed")))) {
    const { message } = checkRankError(
      failure,
      "CollectiveMismatchError",
      /rank 1 at allReduce #1 \(world\)|rank 1 is at/,
    );
    for (const shape of ["float32 [2,4]", "float32 [2,3]"]) checkMessage(message, shape);
  }
  await checkExitStatuses(ranks, [0, 0, 0]);
}

const mismatchedCalls = ["attention, mask causal", "attention, mask full"];

async function checkMismatchedRecords(processes: RankProcesses): Promise<void> {
  const ranks = await processes.startAll(4, "records a mismatched call", { [scenarioVariables.failingRank]: "1" });
  for (const failure of await Promise.all(ranks.map((rank) => rank.waitForEvent("failed")))) {
    const { message } = checkRankError(failure, "CollectiveMismatchError", /rank 1 at call #1 \(pair\): /);
    for (const callText of mismatchedCalls) checkMessage(message, callText);
  }
  await checkExitStatuses(ranks, [0, 0, 0, 0]);
}

/** Rank 1, whose call differs, closes after rank 0 has exited and before rank 2 closes. */
async function checkMismatchAtClose(processes: RankProcesses): Promise<void> {
  const ranks = await processes.startAll(3, "records a mismatched call and closes", {
    [scenarioVariables.failingRank]: "1",
  });
  await Promise.all(ranks.map((rank) => rank.waitForEvent("recorded")));
  const [firstRank, mismatchedRank, lastRank] = ranks as [RankProcess, RankProcess, RankProcess];
  firstRank.proceed();
  await firstRank.waitForEvent("closed");
  await firstRank.exitStatus;
  mismatchedRank.proceed();
  const mismatchFailure = checkRankError(
    await mismatchedRank.waitForEvent("failed"),
    "CollectiveMismatchError",
    /^rank 0 is at call #2 \(world\): /,
  );
  for (const callText of mismatchedCalls) checkMessage(mismatchFailure.message, callText);
  // A rank that closes after a failure does not compare calls.
  lastRank.proceed();
  await checkExitStatuses(ranks, [0, 0, 0]);
}

/** Checks a rank's error and returns its message. */
export function checkRankError(failure: RankEvent, name: string, pattern: RegExp): { readonly message: string } {
  const message = String(failure.message);
  check(failure.name === name, `rank ${failure.rank}: expected ${name}, received ${failure.name}: ${message}`);
  checkMessage(message, pattern);
  return { message };
}

/** Checks the exit codes of ranks, or the signals that terminated them. */
async function checkExitStatuses(ranks: readonly RankProcess[], expected: readonly (number | string)[]): Promise<void> {
  const exitStatuses = await Promise.all(ranks.map((rank) => rank.exitStatus));
  check(
    exitStatuses.join() === expected.join(),
    `expected exit codes or signals ${expected}, received ${exitStatuses}`,
  );
}
