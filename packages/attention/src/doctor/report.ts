import type { Section } from "./diagnose.ts";
import type { Level } from "./finding.ts";

const marks: Readonly<Record<Level, string>> = { ok: "✓", note: "·", problem: "✗" };

/** For people: a line for each finding, what to do below it, a sum last. */
export function report(sections: readonly Section[]): string {
  const width = Math.max(...sections.map(({ name }) => name.length)) + 2;
  const lines = sections.flatMap(({ name, findings }) =>
    findings.flatMap(({ level, text, remedy }, i) => {
      const indent = " ".repeat(width + 2);
      const body = text.replaceAll("\n", `\n${indent}`);
      const first = `${marks[level]} ${(i === 0 ? name : "").padEnd(width)}${body}`;
      return remedy === undefined ? [first] : [first, `${indent}→ ${remedy.trim().replaceAll("\n", `\n${indent}  `)}`];
    }),
  );
  return [...lines, "", summary(sections)].join("\n");
}

function summary(sections: readonly Section[]): string {
  const problems = count(sections, "problem");
  const notes = count(sections, "note");
  const words = (number: number, word: string): string => `${number} ${word}${number === 1 ? "" : "s"}`;
  if (problems > 0) return `${words(problems, "problem")}, ${words(notes, "note")}`;
  return `everything that is installed works${notes > 0 ? `; ${words(notes, "note")}` : ""}`;
}

export function count(sections: readonly Section[], level: Level): number {
  return sections.flatMap(({ findings }) => findings).filter((finding) => finding.level === level).length;
}

/** For programs. */
export function reportJson(sections: readonly Section[], version: string | undefined): string {
  const findings = sections.flatMap(({ name, findings: own }) => own.map((finding) => ({ check: name, ...finding })));
  return JSON.stringify(
    { version, problems: count(sections, "problem"), notes: count(sections, "note"), findings },
    null,
    2,
  );
}
