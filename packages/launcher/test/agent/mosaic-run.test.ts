import { existsSync } from "node:fs";
import { hostname } from "node:os";
import { dirname } from "node:path";
import { describe, expect, it } from "vitest";
import { program, run, temporaryDir } from "../harness.ts";

describe("the agent in mosaic-run", () => {
  it("serves a separate world for each attempt, and reports lost ranks", async () => {
    const { code, stdout } = await run(
      ["-n", "3", "--max-restarts", "1", "--restart-backoff", "1ms", "--failure-grace", "5s", program("control.mjs")],
      { env: { MOSAIC_RDZV_ID: undefined } },
    );
    expect(code).toBe(0);
    const lines = stdout.trim().split("\n");
    const joinedLines = (attempt: number): string[] =>
      lines.filter((line) => line.includes(`attempt ${attempt}:`)).toSorted();
    for (const attempt of [0, 1])
      expect(joinedLines(attempt)).toEqual([
        `[0] attempt ${attempt}: true,false,false on ${hostname()}`,
        `[1] attempt ${attempt}: false,true,false on ${hostname()}`,
        `[2] attempt ${attempt}: false,false,true on ${hostname()}`,
      ]);
    for (const rank of [0, 2]) expect(lines).toContain(`[${rank}] lost [[1,1]]`);
  });

  it.each([
    { when: "before the others have joined", exiting: "1", delay: "0" },
    { when: "once the others wait", exiting: "0", delay: "500" },
  ])("ends the rendezvous of a job when a rank exits with 0 $when", async ({ exiting, delay }) => {
    const { code, stdout, stderr, ms } = await run(["-n", "2", program("exits-early.mjs"), exiting, "job", delay]);
    expect(stdout).toContain(
      `refused: 2 rank ${exiting} of 2 exited before all ranks had joined; call init on all ranks`,
    );
    expect(stderr).toContain(`hint: exited with 0 before the other ranks ended: rank ${exiting}`);
    expect(code).toBe(1);
    expect(ms).toBeLessThan(10_000);
  });

  it("lets the remaining ranks rendezvous under a different name after one has exited", async () => {
    const { code, stdout } = await run(["-n", "3", program("exits-early.mjs"), "1", "mine"]);
    expect(stdout.trim().split("\n").toSorted()).toEqual(["[0] complete: 2", "[2] complete: 2"]);
    expect(code).toBe(0);
  });

  it("listens in a private directory, which is below /tmp if TMPDIR is too long", async () => {
    const longTmpdir = `${temporaryDir()}/${"x".repeat(100)}`;
    const printScript =
      'const { statSync } = require("node:fs"); const { MOSAIC_AGENT: a } = process.env; console.log(a, statSync(require("node:path").dirname(a)).mode.toString(8))';
    for (const [tmpdir, expected] of [
      [temporaryDir(), temporaryDir()],
      [longTmpdir, "/tmp"],
    ] as const) {
      const { stdout } = await run(["-n", "1", "--exec", process.execPath, "-e", printScript], {
        env: { TMPDIR: tmpdir },
      });
      const [path = "", mode] = stdout.trim().replace("[0] ", "").split(" ");
      expect(path).toMatch(new RegExp(`^${expected}/mosaic-run-[^/]+/agent$`));
      expect(mode).toBe("40700");
      expect(existsSync(dirname(path))).toBe(false);
    }
  });
});
