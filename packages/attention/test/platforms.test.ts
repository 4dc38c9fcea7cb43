import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { expect, onTestFinished, test } from "vitest";

const root = fileURLToPath(new URL("../../..", import.meta.url));

/** Code that makes a process appear to run on each platform. With musl, the report of Linux has no glibc version. */
const hosts = {
  macOS: `Object.defineProperty(process, "platform", { value: "darwin" });`,
  Windows: `Object.defineProperty(process, "platform", { value: "win32" });`,
  musl: `process.report.getReport = () => ({ header: {} });
    process.dlopen = () => { throw new Error("Error relocating: symbol not found"); };`,
};
const receivedByPlatform = {
  macOS: `darwin-${process.arch}`,
  Windows: `win32-${process.arch}`,
  musl: `linux-${process.arch} with musl`,
};
const names = Object.keys(hosts) as (keyof typeof hosts)[];

/** Runs an ES module in a process that appears to run on a platform. */
function runOnPlatform(host: keyof typeof hosts, text: string, ...entry: string[]) {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-platform-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  const [preload, program] = [join(directory, "preload.mjs"), join(directory, "program.mjs")];
  writeFileSync(preload, hosts[host]);
  const packages = ["attention", "planner"];
  const imports = packages.map((name) => [
    `@mosaic/${name}`,
    pathToFileURL(join(root, "packages", name, "dist/index.js")),
  ]);
  writeFileSync(
    program,
    imports.reduce(
      (rewrittenText, [name, url]) => rewrittenText.replaceAll(`"${name!.toString()}"`, `"${url!.toString()}"`),
      text,
    ),
  );
  const env = { ...process.env, NODE_OPTIONS: `--import=${pathToFileURL(preload).href}` };
  return spawnSync(process.execPath, [...entry, program], { encoding: "utf8", env, timeout: 60_000 });
}

test.each(names)("on %s a backend can be recorded and proved without a device", (host) => {
  const { stdout, stderr } = runOnPlatform(
    host,
    `import { masks, ring } from "@mosaic/attention";
     import { prove, record } from "@mosaic/planner";
     const run = record({ backend: ring(), mesh: { sp: 4 }, tokens: 1024, numHeads: 2, headDim: 8, mask: masks.causal() });
     console.log(prove(run).violations.length, "violations");`,
  );
  expect(stderr).toBe("");
  expect(stdout.trim()).toBe("0 violations");
});

test.each(names)("on %s the launcher starts ranks", (host) => {
  const cli = join(root, "packages/launcher/bin/mosaic-run.js");
  const { stdout, status } = runOnPlatform(
    host,
    "console.log('rank', process.env.RANK);",
    cli,
    "--nproc-per-node",
    "2",
  );
  expect(status).toBe(0);
  expect(stdout).toContain("rank 0");
  expect(stdout).toContain("rank 1");
});

test.each(names)("on %s init rejects, and names the supported platforms", (host) => {
  const { stdout } = runOnPlatform(
    host,
    `import { init } from "@mosaic/attention";
     await init().then(() => console.log("opened"), (error) => console.log(error.name, error.message));`,
  );
  expect(stdout).toMatch(/AddonLoadError/);
  expect(stdout).toContain(
    `expected linux-x64 or linux-arm64 with glibc 2.28 or newer, received ${receivedByPlatform[host]}`,
  );
});
