// Adds up the reports that the test runs left (vitest.shared.ts), and prints one line: `N passed, N failed`.
// Exits 1 if a test or a whole file failed, or if no report is there.
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { packagesOf } from "./workspace.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const folders = [...packagesOf(root).map((one) => one.path), "scripts", "build/doc-examples"];
const reports = folders
  .map((folder) => join(root, folder, "build/test-report.json"))
  .filter((path) => existsSync(path))
  .map((path) => JSON.parse(readFileSync(path, "utf8")));

const passed = reports.reduce((sum, report) => sum + report.numPassedTests, 0);
// A file that fails to load has no failed test to show for it.
const broken = reports.flatMap((report) => report.testResults).filter((file) => file.status === "failed");
const failed = broken.reduce(
  (sum, file) => sum + Math.max(1, file.assertionResults.filter((one) => one.status === "failed").length),
  0,
);
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed > 0 || passed === 0 ? 1 : 0);
