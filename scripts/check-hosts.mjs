// Runs the tests between hosts for which CI has time: all of `npm run test:hosts` except jobs over ssh and those of
// @mosaic/attention. Hosts are network namespaces, which require root. If this machine lacks a requirement of a test,
// the test is skipped and the reason is printed.
import { spawnSync } from "node:child_process";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const hosts = join(root, "scripts/hosts.sh");
const vitest = ["npx", "vitest", "run", "--config", "../../vitest.config.ts", "test/hosts.test.ts"];

/** Returns the last line of the error of a command, or undefined if it succeeds. */
function findFailure(command, args, cwd = root) {
  const { status, stderr, error } = spawnSync(command, args, { cwd, encoding: "utf8" });
  if (status === 0) return undefined;
  return error?.message ?? stderr.trim().split("\n").at(-1);
}

const namespaceFailure = findFailure("bash", [hosts, "2", "true"]);
const loadUcxSource = 'const { ucxSystem } = await import("./dist/index.js"); ucxSystem()';
const ucxFailure = findFailure(
  "node",
  ["--input-type=module", "--eval", loadUcxSource],
  join(root, "packages/collectives-ucx"),
);

const TESTS = [
  { name: "launcher", command: ["test/hosts.sh"] },
  { name: "collectives-nccl", command: [hosts, "2", ...vitest] },
  { name: "collectives-ucx", command: [hosts, "4", ...vitest], missing: ucxFailure && "no UCX" },
  { name: "nn", command: [hosts, "3", ...vitest], missing: ucxFailure && "no UCX" },
];

let failed = false;
for (const { name, command, missing } of TESTS) {
  const cwd = join(root, "packages", name);
  rmSync(join(cwd, "build/test-report-hosts.json"), { force: true });
  const reason = namespaceFailure ?? missing;
  if (reason !== undefined) {
    console.log(`${name}: NOT RUN between hosts: ${reason}`);
    continue;
  }
  const env = { ...process.env, MOSAIC_TEST_HOSTS: "1" };
  if (spawnSync("bash", command, { cwd, env, stdio: "inherit" }).status !== 0) failed = true;
}
process.exit(failed ? 1 : 0);
