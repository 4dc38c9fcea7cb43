import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { formatMarkdown } from "../papers/table.ts";
import { createCases, lengths } from "./cases.ts";
import { CASE_TIMEOUT_SECONDS } from "./bench.ts";
import { lowerBoundTables, formatReport } from "./report.ts";
import { describeDifference } from "./session.ts";
import { help, type Options, parseOptions } from "./options.ts";
import { Results, runCases, WorkerPool } from "./run.ts";

process.exitCode = await main(process.argv.slice(2));

async function main(args: string[]): Promise<number> {
  const options = parseOptions(args);
  if (options === undefined) return 2;
  if (options.help || options.floors) {
    console.log(options.help ? help : lowerBoundTables(options.sizes, lengths).map(formatMarkdown).join("\n\n"));
    return 0;
  }
  const allCases = createCases(options.lengths, options.sizes, new Map());
  const cases = allCases.filter(({ name }) => options.filter.some((text) => name.includes(text)));
  if (cases.length === 0) {
    console.error(
      `--filter: expected parts of case names, received "${options.filter.join()}"; --list prints all names`,
    );
    return 2;
  }
  if (options.list) console.log(cases.map(({ name }) => name).join("\n"));
  if (options.list) return 0;
  const results = new Results(options.file);
  using workers = new WorkerPool(args);
  try {
    await printHeader(workers, results, options);
  } catch (error) {
    console.error((error as Error).message);
    return 2;
  }
  const { failures, remainingCases } = await runCases(
    cases,
    ({ name }) => workers.run(name, CASE_TIMEOUT_SECONDS),
    results,
    options,
  );
  const page = formatReport(results.byCase);
  writeFileSync(join(options.out, "gpu.md"), page);
  console.log(page);
  for (const [name, reason] of Object.entries(failures)) console.error(`FAILED ${name}: ${reason}`);
  if (remainingCases.length > 0) {
    console.error(
      `${remainingCases.length} cases were not run within the time limit, starting with ${remainingCases[0]}; run the command again to continue`,
    );
  }
  return Object.keys(failures).length > 0 ? 1 : 0;
}

/**
 * Stores a description of the machine and the options. Throws if there is no GPU or no baseline process, or if the
 * stored results are of a different machine.
 */
async function printHeader(workers: WorkerPool, results: Results, { out, sizes }: Options): Promise<void> {
  const storedHost = results.byCase.get("host");
  const host = await workers.run("host", CASE_TIMEOUT_SECONDS);
  const hostDifference = storedHost && describeDifference(storedHost, host);
  if (hostDifference)
    throw new Error(`${out} holds results of a different machine (${hostDifference}); pass a different --out`);
  const commands = new Set([...((storedHost?.["commands"] ?? []) as string[]), host["command"] as string]);
  results.add({ ...host, commands: [...commands], sizes });
}
