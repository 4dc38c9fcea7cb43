// mosaic-doctor: what is here, whether it works, and what to do if not.
import { parseArgs } from "node:util";
import { countFindings, diagnose, formatReport, formatReportJson } from "./diagnose.ts";
import { thisSystem } from "./system.ts";

const help = `mosaic-doctor: looks at this machine as Mosaic sees it, tries what is installed, and prints what to do.

  npx mosaic-doctor [options]

  --json         one JSON object
  -h, --help     this text
  -V, --version  the version of @mosaic/attention

Marks: ✓ works, · worth knowing, ✗ broken. Exit code: 0 if all installed packages work, 1 if something is broken,
2 for options that do not exist. That there is no GPU is worth knowing, not broken.`;

async function main(args: readonly string[]): Promise<number> {
  const options = { json: { type: "boolean" }, help: { type: "boolean", short: "h" } } as const;
  const more = { version: { type: "boolean", short: "V" } } as const;
  const { values } = parseArgs({ args: [...args], options: { ...options, ...more }, strict: true });
  const version = thisSystem.version("@mosaic/attention");
  if (values.help || values.version) {
    console.log(values.help ? help : version);
    return 0;
  }
  const sections = await diagnose(thisSystem);
  console.log(values.json ? formatReportJson(sections, version) : formatReport(sections));
  return countFindings(sections, "problem") > 0 ? 1 : 0;
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  if (!(error as NodeJS.ErrnoException).code?.startsWith("ERR_PARSE_ARGS")) throw error;
  console.error(`mosaic-doctor: ${(error as Error).message}\n\n${help}`);
  process.exitCode = 2;
}
