import { parseArgs } from "node:util";
import { jsonLines, markdown, type Table } from "./table.ts";
import { papers } from "./tables.ts";

const help = `Predicts what Mesh-Attention and Attention2D report of their clusters, and what Mosaic's best plan does there.

  npm run bench:papers -- [options]

  --only NAME   ${Object.keys(papers).join(" or ")}
  --json        one JSON object a row: {"table": …, its cells}
  -h, --help    show this help`;

process.exitCode = main(process.argv.slice(2));

function main(args: string[]): number {
  const options = read(args);
  if (options === undefined) return 2;
  if (options.help) {
    console.log(help);
    return 0;
  }
  const chosen = Object.entries(papers).filter(([name]) => options.only === undefined || name === options.only);
  if (chosen.length === 0) {
    console.error(`--only ${options.only}: there are ${Object.keys(papers).join(" and ")}`);
    return 2;
  }
  for (const [name, tables] of chosen) print(name, tables(), options.json);
  return 0;
}

function print(name: string, tables: readonly Table[], json: boolean): void {
  if (json) console.log(tables.map(jsonLines).join("\n"));
  else console.log([`## ${name}`, ...tables.map(markdown)].join("\n\n"), "\n");
}

function read(args: string[]): { only?: string; json: boolean; help: boolean } | undefined {
  const flag = { type: "boolean", default: false } as const;
  try {
    return parseArgs({ args, options: { only: { type: "string" }, json: flag, help: { ...flag, short: "h" } } }).values;
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${help}`);
    return undefined;
  }
}
