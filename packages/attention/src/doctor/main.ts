// mosaic-doctor: reports the hardware and software of this machine, whether it works, and remedies if it does not.
import { parseArgs } from "node:util";
import type { Profile } from "@mosaic/planner";
import { countFindings, diagnose, formatReport, formatReportJson } from "./diagnose.ts";
import { formatFailure, runProbeProcess, currentSystem } from "./system.ts";

const help = `mosaic-doctor: inspects this machine, tests the installed packages, and prints remedies.

  npx mosaic-doctor [options]
  npx mosaic-run -N 2 … --exec npx mosaic-doctor --hosts [options]

  --hosts        under mosaic-run on every node: compare the hosts of the job, measure latency and bandwidth of each pair,
                 and print matrices and remedies on rank 0; on a single node, measure pairs of ranks
  --ports A-B    with --hosts: range of TCP ports to listen on, such as the range open in a firewall
  --json         print one JSON object; with --hosts, a profile for mosaic-plan --profile FILE.json, and findings on stderr
  -h, --help     show this help
  -V, --version  show the version of @mosaic/attention

Marks: ✓ passed, · note, ✗ problem. Exit code: 0 if all installed packages work, 1 if there is a problem,
2 for unknown options. A missing GPU is a note, not a problem.`;

/** An invalid command line. */
class UsageError extends Error {}

const CALIBRATION_TIMEOUT_MS = 300_000;

async function main(args: readonly string[]): Promise<number> {
  const values = parseArguments(args);
  const version = currentSystem.version("@mosaic/attention");
  if (values.help || values.version) {
    console.log(values.help ? help : version);
    return 0;
  }
  if (values.hosts) return await compareHosts(values.ports, values.json ?? false);
  if (values.ports !== undefined) {
    throw new UsageError(
      `--ports: expected --hosts as well, since only a comparison of hosts listens on ports, received "${values.ports}" without --hosts; ` +
        "run npx mosaic-run -N 2 --node-rank … --exec npx mosaic-doctor --hosts --ports A-B, or omit --ports",
    );
  }
  const sections = await diagnose(currentSystem);
  console.log(values.json ? formatReportJson(sections, version) : formatReport(sections));
  return countFindings(sections, "problem") > 0 ? 1 : 0;
}

function parseArguments(args: readonly string[]) {
  const options = { json: { type: "boolean" }, help: { type: "boolean", short: "h" } } as const;
  const valueOptions = {
    version: { type: "boolean", short: "V" },
    hosts: { type: "boolean" },
    ports: { type: "string" },
  } as const;
  try {
    return parseArgs({ args: [...args], options: { ...options, ...valueOptions }, strict: true }).values;
  } catch (error) {
    const message = (error as Error).message.split("\n", 1)[0]!.replace(/\.$/, "");
    throw new UsageError(`${message}; mosaic-doctor --help lists all options`);
  }
}

async function compareHosts(portsText: string | undefined, isJsonOutput: boolean): Promise<number> {
  const ports = portsText === undefined ? undefined : parsePorts(portsText);
  const { env } = currentSystem;
  if (!env["MOSAIC_STORE"] || env["RANK"] === undefined) {
    throw new UsageError(
      "--hosts: expected the ranks of a job, received a single process; run npx mosaic-run -N 2 --node-rank … --exec npx mosaic-doctor --hosts",
    );
  }
  const { measureHosts } = await import("./hosts/run.ts");
  const result = await measureHosts(currentSystem, { ports });
  if (!result) return 0;
  const { reportHosts } = await import("./hosts/report.ts");
  const sections = reportHosts(result);
  const report = formatReport(sections, "the hosts of this job are compatible");
  const status = countFindings(sections, "problem") > 0 ? 1 : 0;
  if (!isJsonOutput) {
    console.log(report);
    return status;
  }
  console.error(report);
  const { createProfile } = await import("./hosts/profile.ts");
  const ranks = env["LOCAL_WORLD_SIZE"] ?? "1";
  const threads = env["MOSAIC_THREADS"] ?? "1";
  const calibrationResult = await runProbeProcess<Profile>(["profile", ranks, threads], CALIBRATION_TIMEOUT_MS);
  if ("error" in calibrationResult) {
    console.error(
      `mosaic-doctor: cannot create the profile: ${formatFailure(calibrationResult.error).filter(Boolean).join("; ")}`,
    );
    return 1;
  }
  console.log(JSON.stringify(createProfile(calibrationResult.value, result), null, 2));
  return status;
}

function parsePorts(text: string): readonly [number, number] {
  const [firstPort = 0, lastPort = 0] = (/^(\d{1,5})-(\d{1,5})$/.exec(text)?.slice(1) ?? []).map(Number);
  if (firstPort >= 1 && firstPort <= lastPort && lastPort <= 65_535) return [firstPort, lastPort];
  throw new UsageError(`--ports: expected a range from 1 to 65535, such as 30000-30999, received "${text}"`);
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  if (!(error instanceof UsageError)) throw error;
  console.error(`mosaic-doctor: ${error.message}`);
  process.exitCode = 2;
}
