// Setup for programs that start jobs on the hosts of scripts/hosts.sh.
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

export const launcherPath = join(
  dirname(createRequire(import.meta.url).resolve("@mosaic/launcher/package.json")),
  "bin/mosaic-run.js",
);

/** The address of a host on the bridge. */
export const hostAddress = (host) => `10.77.0.1${host}`;

/** A directory that is removed at exit. */
export const workDirectory = mkdtempSync(join(tmpdir(), "mosaic-hosts-"));
process.on("exit", () => rmSync(workDirectory, { recursive: true }));

/** File with the secret of all jobs, for MOSAIC_TOKEN_FILE. */
export const tokenFile = join(workDirectory, "token");
writeFileSync(tokenFile, randomBytes(32).toString("hex"), { mode: 0o600 });

export const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

/** Formats numbers as "0.327 [0.241 … 0.387]": the median, followed by `unit`, the minimum and the maximum. */
export function formatSpread(numbers, unit) {
  const [medianText, minText, maxText] = [median(numbers), Math.min(...numbers), Math.max(...numbers)].map((x) =>
    x.toFixed(3),
  );
  return `${medianText}${unit} [${minText} … ${maxText}]`;
}
