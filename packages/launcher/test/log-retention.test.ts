import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, it, onTestFinished, vi } from "vitest";
import { applyLogRetention, removeOldLogs, temporaryLogDirectory } from "../src/output/log-retention.ts";
import { run, temporaryDir } from "./harness.ts";

const DAY = 24 * 3_600_000;
const now = Date.now();

/** Creates a directory of logs that was last written `days` days ago. */
function createLogs(id: string, days: number, bytes: number, hasEnded = true): string {
  const dir = temporaryLogDirectory(id);
  mkdirSync(join(dir, "attempt_0/0"), { recursive: true });
  writeFileSync(join(dir, "attempt_0/0/stdout.log"), "x".repeat(bytes));
  if (hasEnded) writeFileSync(join(dir, "ended"), "");
  const modifiedAt = new Date(now - days * DAY);
  for (const name of ["attempt_0/0/stdout.log", ...(hasEnded ? ["ended"] : []), ""])
    utimesSync(join(dir, name), modifiedAt, modifiedAt);
  return dir;
}

const listRemaining = (): readonly string[] => readdirSync(temporaryDir()).toSorted();

describe("temporary logs", () => {
  beforeEach(() => {
    vi.stubEnv("TMPDIR", temporaryDir());
    onTestFinished(() => void vi.unstubAllEnvs());
  });

  it("are removed after a week, except those of a running job", () => {
    for (const [id, days] of [
      ["young", 6.9],
      ["old", 7.1],
    ] as const)
      createLogs(id, days, 10);
    createLogs("running", 20, 10, false);
    createLogs("abandoned", 29, 10, false);
    const otherDirectory = join(temporaryDir(), "mosaic-run-other");
    mkdirSync(otherDirectory);
    symlinkSync(otherDirectory, join(temporaryDir(), "mosaic-logs-link"));
    removeOldLogs({ now });
    expect(listRemaining()).toEqual([
      "mosaic-logs-link",
      "mosaic-logs-running",
      "mosaic-logs-young",
      "mosaic-run-other",
    ]);
    expect(existsSync(otherDirectory)).toBe(true);
    // Otherwise the harness would treat the directory as a secret that was left behind.
    vi.stubEnv("TMPDIR", "/nonexistent");
    expect(() => removeOldLogs()).not.toThrow();
    rmdirSync(otherDirectory);
  });

  it("are removed beyond the size limit, oldest first", () => {
    for (const [id, days] of [
      ["a", 3],
      ["b", 2],
      ["c", 1],
    ] as const)
      createLogs(id, days, 400);
    createLogs("small", 4, 1);
    removeOldLogs({ now, bytes: 1000 });
    expect(listRemaining()).toEqual(["mosaic-logs-b", "mosaic-logs-c"]);
  });

  it("are reduced to the ends of the longest files if one job exceeds the limit", () => {
    const dir = createLogs("big", 0, 5000, false);
    writeFileSync(join(dir, "attempt_0/0/stderr.log"), "short");
    writeFileSync(join(dir, "attempt_0/0/stdout.log"), `${"x".repeat(5000)}the end`);
    createLogs("older", 1, 100);
    applyLogRetention(dir, { now, bytes: 1000 });
    const text = readFileSync(join(dir, "attempt_0/0/stdout.log"), "utf8");
    expect(text).toHaveLength(995);
    expect(text).toMatch(/^\[the first 4012 bytes were removed: logs are limited to 1 GB\]\nx+the end$/);
    expect(readFileSync(join(dir, "attempt_0/0/stderr.log"), "utf8")).toBe("short");
    expect(listRemaining()).toEqual(["mosaic-logs-big"]);
  });

  it("of a failed job are reported, and removed by a later failing job when they are old", async () => {
    const { stderr } = await run(["-n", "1", "--exec", "sh", "-c", "exit 3"]);
    const [name = ""] = listRemaining();
    expect(stderr).toMatch(
      new RegExp(`\\n {2}log directory of all ranks: \\S*/${name}, kept for a week; see --log-dir`),
    );
    const oldDate = new Date(now - 8 * DAY);
    const files = readdirSync(temporaryDir(), { recursive: true }) as string[];
    for (const file of files) utimesSync(join(temporaryDir(), file), oldDate, oldDate);
    expect((await run(["-n", "1", "--exec", "false"])).code).toBe(1);
    expect(listRemaining()).toEqual([expect.not.stringMatching(name)]);
  });
});
