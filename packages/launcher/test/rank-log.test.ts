import { mkdtempSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { RankLog } from "../src/output/rank-log.ts";

test.runIf(process.platform === "linux")("a full disk ends the log with one warning that names the file", () => {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-rank-log-"));
  const path = join(directory, "stdout.log");
  symlinkSync("/dev/full", path);
  const write = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  try {
    const log = new RankLog(directory);
    for (const text of ["first\n", "second\n"]) log.write("stdout", Buffer.from(text));
    log.write("stderr", Buffer.from("an error\n"));
    log.close();
    expect(write.mock.calls.map(([text]) => text)).toEqual([
      expect.stringMatching(
        /^mosaic-run: .*stdout\.log cannot be written: ENOSPC: .*; the log is incomplete from here on/,
      ),
    ]);
    expect(write.mock.calls[0]![0]).toContain(path);
  } finally {
    write.mockRestore();
  }
});
