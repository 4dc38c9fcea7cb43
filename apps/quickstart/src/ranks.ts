import { fileURLToPath } from "node:url";
import { type Failure, launch } from "@mosaic/launcher";
import { type Job, type RankReport, readReport } from "./job.ts";

/** Some rank did not come through; `exitCode` is what the program should end with. */
export class RanksFailed extends Error {
  override readonly name: string = "RanksFailed";
  readonly exitCode: number;
  constructor(message: string, exitCode: number) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** Starts the ranks as processes, reads their progress, and returns the report of each. */
export async function runRanks(
  job: Job,
  progress: (share: number) => void,
  abort: AbortSignal,
): Promise<readonly RankReport[]> {
  const { ranks } = job.settings;
  const result = await launch({
    entry: fileURLToPath(new URL("./rank.js", import.meta.url)),
    args: [JSON.stringify(job)],
    nprocPerNode: ranks,
    abort,
    onEvent(event) {
      if (event.type !== "line") return;
      const share = event.stream === "stdout" && event.rank === 0 ? shareIn(event.text) : undefined;
      if (share === undefined) process.stderr.write(`[${event.rank}] ${event.text}\n`);
      else progress(share);
    },
  });
  if (result.outcome !== "succeeded")
    throw new RanksFailed(describe(result.failure) ?? result.outcome, result.exitCode);
  return Array.from({ length: ranks }, (_, rank) => readReport(job.folder, rank));
}

function shareIn(line: string): number | undefined {
  const found = /^\{"share":([\d.]+)\}$/.exec(line);
  return found ? Number(found[1]) : undefined;
}

function describe(failure: Failure | undefined): string | undefined {
  if (!failure) return undefined;
  const how = failure.signal ? `signal ${failure.signal}` : `exit ${failure.code}`;
  const why = failure.error ? (failure.error.stack ?? failure.error.message) : failure.stderrTail.join("\n");
  return `rank ${failure.rank} failed (${how}): ${why}${failure.hint ? `\n${failure.hint}` : ""}`;
}
