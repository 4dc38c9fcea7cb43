import type { Failure, System } from "./system.ts";

/** A problem is something installed that does not work; a note is something to know, or to make better. */
export type Level = "ok" | "note" | "problem";

/** One thing found out. */
export interface Finding {
  readonly level: Level;
  readonly text: string;
  /** What to do about it. */
  readonly remedy?: string;
}

/** One subject that the doctor looks into. It reads the machine through `system` alone, and never throws. */
export interface Check {
  readonly name: string;
  run(system: System): readonly Finding[] | Promise<readonly Finding[]>;
}

export const ok = (text: string): Finding => ({ level: "ok", text });
export const note = (text: string, remedy?: string): Finding => ({ level: "note", text, ...(remedy && { remedy }) });
export const problem = (text: string, remedy?: string): Finding => ({
  level: "problem",
  text,
  ...(remedy && { remedy }),
});

/** "24.7 GB" */
export function gigabytes(bytes: number): string {
  return bytes >= 1e8 ? `${(bytes / 1e9).toFixed(1)} GB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** A failure as a finding's text and remedy; where these are not apart, the first sentence says what is wrong. */
export function explained({ message, remedy }: Failure): readonly [text: string, remedy?: string] {
  if (remedy !== undefined) return [message, remedy];
  const end = /\.\s+(?=[A-Z])|\n|; (?=install )/.exec(message);
  return end ? [message.slice(0, end.index), message.slice(end.index + end[0].length)] : [message];
}
