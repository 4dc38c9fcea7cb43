import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";

/** The tests start what users start, dist/cli.js: brings it up to date when a source is newer. */
export default function build(): void {
  const root = join(import.meta.dirname, "..");
  const newest = Math.max(...sources(join(root, "src")).map((path) => statSync(path).mtimeMs));
  const built = ["agent.js", "agent-process.js", "cli.js", "index.js", "preload.cjs"].map((name) =>
    join(root, "dist", name),
  );
  if (built.every((path) => existsSync(path) && statSync(path).mtimeMs >= newest)) return;
  execFileSync("npx", ["--no-install", "tsup"], { cwd: root, stdio: "ignore" });
}

const sources = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts"))
    .map((name) => join(folder, name));
