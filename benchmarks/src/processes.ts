import { fileURLToPath } from "node:url";
import { launch } from "@mosaic/launcher";

/**
 * Runs `entry`, a path relative to this file, as ranks under the launcher. Returns the JSON lines that each rank
 * printed.
 */
export async function runProcesses<T>(
  entry: string,
  ranks: number,
  jobDescription: unknown,
): Promise<readonly (readonly T[])[]> {
  const reportedLines: T[][] = Array.from({ length: ranks }, () => []);
  const result = await launch({
    entry: fileURLToPath(new URL(entry, import.meta.url)),
    args: [JSON.stringify(jobDescription)],
    nprocPerNode: ranks,
    onEvent(event) {
      if (event.type !== "line") return;
      if (event.stream === "stdout") reportedLines[event.rank]!.push(JSON.parse(event.text) as T);
      else process.stderr.write(`[${event.rank}] ${event.text}\n`);
    },
  });
  if (result.outcome === "succeeded") return reportedLines;
  const { failure } = result;
  throw new Error(`${entry}: ${failure?.error?.stack ?? failure?.stderrTail.join("\n") ?? result.outcome}`);
}
