import { checks } from "./checks/index.ts";
import { type Check, type Finding, problem } from "./finding.ts";
import type { System } from "./system.ts";

/** What a check found. */
export interface Section {
  readonly name: string;
  readonly findings: readonly Finding[];
}

/** Runs all checks at once, each probe once; sections in the order of the checks, without empty ones. */
export async function diagnose(system: System): Promise<readonly Section[]> {
  const answers = new Map<string, unknown>();
  const ask = ((probe: Parameters<System["ask"]>[0]) => {
    if (!answers.has(probe)) answers.set(probe, system.ask(probe));
    return answers.get(probe);
  }) as System["ask"];
  const sections = await Promise.all(checks.map((check) => sectionOf(check, { ...system, ask })));
  return sections.filter(({ findings }) => findings.length > 0);
}

async function sectionOf({ name, run }: Check, system: System): Promise<Section> {
  try {
    return { name, findings: await run(system) };
  } catch (error) {
    return { name, findings: [problem(`the doctor itself failed: ${(error as Error).stack}`)] };
  }
}
