// Adds up the reports that the test runs left (vitest.config.ts), and prints one line: `N passed, N failed`.
// Exits 1 if a test or a whole file failed, or if no test passed at all.
//
//   node scripts/count-tests.mjs [root]
import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { packagesOf } from "./workspace.mjs";

/** `{ passed, failed }` over all reports below `root`. */
export function countTests(root) {
  const directories = [...packagesOf(root).map((one) => one.path), "scripts", "build/doc-examples"];
  const reports = directories
    .flatMap((directory) =>
      ["test-report", "test-report-hosts"].map((name) => join(root, directory, `build/${name}.json`)),
    )
    .filter((path) => existsSync(path))
    .map((path) => JSON.parse(readFileSync(path, "utf8")));
  return { passed: sum(reports, (report) => report.numPassedTests), failed: sum(reports, failuresOf) };
}

/** What was to run and did not pass: a worker that dies leaves tests without an outcome, a file that fails to load none. */
function failuresOf({ numTotalTests, numPassedTests, numPendingTests, numTodoTests, testResults }) {
  const fileOnly = ({ status, assertionResults }) =>
    status === "failed" && !assertionResults.some((one) => one.status === "failed");
  return numTotalTests - numPassedTests - numPendingTests - numTodoTests + testResults.filter(fileOnly).length;
}

const sum = (items, measure) => items.reduce((total, item) => total + measure(item), 0);

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { passed, failed } = countTests(resolve(process.argv[2] ?? fileURLToPath(new URL("..", import.meta.url))));
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed > 0 || passed === 0 ? 1 : 0);
}
