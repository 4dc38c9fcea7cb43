import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { markdown } from "../papers/table.ts";
import { attentionCase, fewerLengths, lengths as allLengths, shapesOf } from "./attention.ts";
import type { Case } from "./bench.ts";
import { ceilingCases } from "./ceilings.ts";
import { once, quick, thorough } from "./effort.ts";
import { floorTables } from "./floors.ts";
import { gateCase } from "./gate.ts";
import { differenceOf, hostOf } from "./host.ts";
import { help, read } from "./options.ts";
import type { Sizes } from "./problem.ts";
import { report } from "./report.ts";
import { Results } from "./results.ts";
import { ringCases } from "./ring.ts";
import { runCases } from "./run.ts";
import { Session } from "./session.ts";

process.exitCode = await main(process.argv.slice(2));

async function main(args: string[]): Promise<number> {
  const options = read(args);
  if (options === undefined) return 2;
  const sizes = { tokens: Number(options.tokens), hidden: Number(options.hidden) };
  if (options.help || options.floors) {
    console.log(options.help ? help : floorTables(sizes, allLengths).map(markdown).join("\n\n"));
    return 0;
  }
  const results = new Results(join(options.out, "gpu.jsonl"));
  const cases = casesOf(options.lengths, sizes, results).filter(({ name }) =>
    options.filter.some((text) => name.includes(text)),
  );
  if (cases.length === 0) {
    console.error(`--filter ${options.filter.join()}: no case is called so; --list shows all`);
    return 2;
  }
  if (options.list) console.log(cases.map(({ name }) => name).join("\n"));
  if (options.list) return 0;
  const effort = options.once ? once : options.quick ? quick : thorough;
  await using session = new Session({ ...options, sizes, effort });
  const host = await hostOf(options.device, session.peer());
  const kept = results.byCase.get("host");
  const difference = kept && differenceOf(kept, host);
  if (difference) {
    console.error(`${options.out} holds results of another machine (${difference}); give another --out`);
    return 2;
  }
  const commands = new Set([...((kept?.["commands"] ?? []) as string[]), host["command"] as string]);
  results.add({ ...host, commands: [...commands], sizes });
  const { failed, left } = await runCases(cases, session, results, {
    share: Number(options.share),
    again: options.again,
  });
  const page = report(results.byCase);
  mkdirSync(options.out, { recursive: true });
  writeFileSync(join(options.out, "gpu.md"), page);
  console.log(page);
  for (const [name, why] of Object.entries(failed)) console.error(`FAILED ${name}: ${why}`);
  if (left.length > 0)
    console.error(`${left.length} cases left for want of time, from ${left[0]} on: run again to go on`);
  return Object.keys(failed).length > 0 ? 1 : 0;
}

function casesOf(lengths: readonly number[], sizes: Sizes, { byCase }: Results): readonly Case[] {
  const shapes = shapesOf(lengths, fewerLengths);
  const kinds = new Map(shapes.map((shape) => [`${shape.dtype} ${shape.mask} ${shape.d}`, shape]));
  return [
    ...[...kinds.values()].map(gateCase),
    ...ceilingCases,
    ...shapes.map((shape) => attentionCase(shape, byCase)),
    ...ringCases(sizes),
  ];
}
