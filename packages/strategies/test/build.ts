import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";

/** The tests start what users start, dist/cli.js: brings it up to date when a source is newer. */
export default function build(): void {
  const root = join(import.meta.dirname, "..");
  const newest = Math.max(...sources(join(root, "src")).map((path) => statSync(path).mtimeMs));
  const built = join(root, "dist/cli.js");
  if (existsSync(built) && statSync(built).mtimeMs >= newest) return;
  execFileSync("npx", ["--no-install", "tsup"], { cwd: root, stdio: "ignore" });
}

const sources = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts"))
    .map((name) => join(folder, name));
