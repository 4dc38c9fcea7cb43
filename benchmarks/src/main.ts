import { parseArgs } from "node:util";
import type { BenchmarkCase, MeasurementOptions, ResultRow } from "./case.ts";
import { collectiveCases } from "./collectives.ts";
import { decodeCases, baselineDecodeCases } from "./decode.ts";
import { decodeRanksCases, baselineDecodeStepCases } from "./decode-step.ts";
import { flexCases } from "./flex.ts";
import { gemmCases, localCases } from "./local.ts";
import { baselineCases } from "./peers.ts";
import { baselineErrorCases } from "./peers-errors.ts";
import { baselineLinearCases } from "./peers-linear.ts";
import { baselineRingCases } from "./peers-ring.ts";
import { predictionCases } from "./prediction.ts";
import { proofCases } from "./proof.ts";
import { ringCases } from "./ring.ts";
import { smallCallCases } from "./small-calls.ts";

const help = `Measures Mosaic on this machine, relative to the machine's limits measured in the same run.

  npm run bench -- [options]

  --python PATH   Python executable with PyTorch; also runs the cases "peer…", Mosaic and PyTorch in turns
  --filter TEXT   runs only cases with TEXT in the name; separate several by commas
  --quick         runs fewer repetitions: about one minute, less precise
  --json          prints one JSON object per case: its name in "case", and its numbers
  --list          prints the names of the cases
  -h, --help      show this help`;

const cases: readonly BenchmarkCase[] = [
  ...localCases,
  ...ringCases,
  ...flexCases,
  ...gemmCases,
  ...decodeCases,
  ...decodeRanksCases,
  ...collectiveCases,
  ...predictionCases,
  ...proofCases,
];

/** Cases that also run PyTorch. */
const baselineOnlyCases: readonly BenchmarkCase[] = [
  ...baselineCases,
  ...baselineErrorCases,
  ...baselineDecodeCases,
  ...baselineDecodeStepCases,
  ...baselineLinearCases,
  ...baselineRingCases,
  ...smallCallCases,
];

process.exitCode = await main(process.argv.slice(2));

async function main(args: string[]): Promise<number> {
  const options = parseOptions(args);
  if (options === undefined) return 2;
  if (options.help) console.log(help);
  if (options.help) return 0;
  const matchesFilter = (name: string): boolean => options.filter.some((text) => name.includes(text));
  const selectedCases = [...cases, ...(options.python ? baselineOnlyCases : [])].filter(({ names }) =>
    names.some(matchesFilter),
  );
  if (selectedCases.length === 0) {
    console.error(
      `--filter: expected parts of case names, received "${options.filter.join()}"; --list prints all names, with --python also those of PyTorch cases`,
    );
    return 2;
  }
  if (options.list)
    for (const name of selectedCases.flatMap(({ names }) => names).filter(matchesFilter)) console.log(name);
  if (options.list) return 0;
  const effort: MeasurementOptions = { repetitions: options.quick ? 2 : 7, python: options.python };
  for (const benchmarkCase of selectedCases) {
    for (const row of (await benchmarkCase.run(effort)).filter((resultRow) => matchesFilter(resultRow.case))) {
      console.log(options.json ? formatJson(row) : `${row.case.padEnd(44)}${row.text}`);
    }
  }
  return 0;
}

interface Options {
  readonly filter: readonly string[];
  readonly python: string | undefined;
  readonly quick: boolean;
  readonly json: boolean;
  readonly list: boolean;
  readonly help: boolean;
}

function parseOptions(args: string[]): Options | undefined {
  const flag = { type: "boolean", default: false } as const;
  try {
    const { values } = parseArgs({
      args,
      options: {
        filter: { type: "string" },
        python: { type: "string" },
        quick: flag,
        json: flag,
        list: flag,
        help: { ...flag, short: "h" },
      },
    });
    return { ...values, python: values.python, filter: (values.filter ?? "").split(",") };
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${help}`);
    return undefined;
  }
}

/** Rounds to four digits. More would be noise. */
function formatJson({ case: name, numbers }: ResultRow): string {
  const roundedNumbers = Object.entries(numbers).map(([key, value]) => [key, Number(value.toPrecision(4))]);
  return JSON.stringify({ case: name, ...Object.fromEntries(roundedNumbers) });
}
