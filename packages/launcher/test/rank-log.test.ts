import { mkdtempSync, readFileSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { RankLog } from "../src/output/rank-log.ts";

test.runIf(process.platform === "linux")("a full disk ends the log of a stream with one error", () => {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-rank-log-"));
  symlinkSync("/dev/full", join(directory, "stdout.log"));
  const log = new RankLog(directory);
  const results = ["first\n", "second\n"].map((text) => log.write("stdout", Buffer.from(text)));
  expect(results).toEqual([expect.objectContaining({ code: "ENOSPC" }), undefined]);
  expect(log.write("stderr", Buffer.from("an error\n"))).toBeUndefined();
  log.close();
  expect(readFileSync(log.path("stderr"), "utf8")).toBe("an error\n");
});
