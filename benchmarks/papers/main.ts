import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { attention2dTables } from "./attention2d.ts";
import { meshAttentionTables } from "./mesh-attention.ts";
import { rankChart } from "./rank-chart.ts";
import { rankTables } from "./ranks.ts";
import { formatJsonLines, formatMarkdown, type Table } from "./table.ts";

/** Groups of tables, by name. */
const tableGroups: Readonly<Record<string, () => readonly Table[]>> = {
  "mesh-attention": meshAttentionTables,
  attention2d: attention2dTables,
  ranks: rankTables,
};

const help = `Predicts the published results of Mesh-Attention and Attention2D on their clusters, Mosaic's best plan there, and all
strategies on 16 to 1 024 ranks.

  npm run bench:papers -- [options]

  --only NAME   prints only one group of tables: ${Object.keys(tableGroups).join(", ")}
  --json        prints one JSON object per row: the table's name in "table", and the row's cells
  --draw FILE   draws docs/images/strategies-by-ranks.svg from the rows of \`--only ranks --json\`, without predicting
  -h, --help    show this help`;

process.exitCode = main(process.argv.slice(2));

function main(args: string[]): number {
  const options = parseOptions(args);
  if (options === undefined) return 2;
  if (options.help) {
    console.log(help);
    return 0;
  }
  if (options.draw !== undefined) {
    const picturePath = fileURLToPath(new URL("../../docs/images/strategies-by-ranks.svg", import.meta.url));
    writeFileSync(picturePath, rankChart(readFileSync(options.draw, "utf8")));
    return 0;
  }
  const selectedGroups = Object.entries(tableGroups).filter(
    ([name]) => options.only === undefined || name === options.only,
  );
  if (selectedGroups.length === 0) {
    console.error(`--only: expected one of ${Object.keys(tableGroups).join(", ")}, received ${options.only}`);
    return 2;
  }
  for (const [name, tables] of selectedGroups) print(name, tables(), options.json);
  return 0;
}

function print(name: string, tables: readonly Table[], json: boolean): void {
  if (json) console.log(tables.map(formatJsonLines).join("\n"));
  else console.log([`## ${name}`, ...tables.map(formatMarkdown)].join("\n\n"), "\n");
}

function parseOptions(args: string[]): { only?: string; draw?: string; json: boolean; help: boolean } | undefined {
  const [flag, text] = [{ type: "boolean", default: false }, { type: "string" }] as const;
  try {
    const optionTypes = { only: text, draw: text, json: flag, help: { ...flag, short: "h" } } as const;
    return parseArgs({ args, options: optionTypes }).values;
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${help}`);
    return undefined;
  }
}
