// Adds up the reports of the test runs (vitest.config.ts). Prints a line for each failure on stderr, and
// `N passed, N failed` on stdout. Exits with code 1 if a test or a whole file failed, or if no test passed.
//
//   node scripts/count-tests.mjs [root]
import { existsSync, readFileSync } from "node:fs";
import { join, relative, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { listPackages } from "./workspace.mjs";

/** Returns `{ passed, failed, failures }` over all reports below `root`. `failures` has a line for each failed test. */
export function countTests(root) {
  const directories = [...listPackages(root).map((each) => each.path), "scripts", "build/doc-examples"];
  const reports = directories
    .flatMap((directory) =>
      ["test-report", "test-report-hosts"].map((name) => join(root, directory, `build/${name}.json`)),
    )
    .filter((path) => existsSync(path))
    .map((path) => JSON.parse(readFileSync(path, "utf8")));
  return {
    passed: sumBy(reports, (report) => report.numPassedTests),
    failed: sumBy(reports, countFailures),
    failures: reports.flatMap((report) => report.testResults).flatMap((file) => describeFailures(file, root)),
  };
}

/** Returns `path > test: message` for each failure in a file, with the first line of its message. */
function describeFailures({ name: path, status, message, assertionResults }, root) {
  const firstLine = (text) => text?.trim().split("\n")[0] || "no message";
  const file = relative(root, path);
  const failedTests = assertionResults.filter((each) => each.status !== "passed" && !NOT_RUN_STATUSES.has(each.status));
  if (failedTests.length === 0) return status === "failed" ? [`${file}: ${firstLine(message)}`] : [];
  return failedTests.map((each) => `${file} > ${each.fullName}: ${firstLine(each.failureMessages[0])}`);
}

/** Statuses of tests that were not meant to run. */
const NOT_RUN_STATUSES = new Set(["pending", "skipped", "todo", "disabled"]);

/**
 * Counts tests that should have run and did not pass, including those of a worker that died, and files that failed to
 * load, which have no tests.
 */
function countFailures({ numTotalTests, numPassedTests, numPendingTests, numTodoTests, testResults }) {
  const hasFailedToLoad = ({ status, assertionResults }) =>
    status === "failed" && !assertionResults.some((each) => each.status === "failed");
  return numTotalTests - numPassedTests - numPendingTests - numTodoTests + testResults.filter(hasFailedToLoad).length;
}

const sumBy = (items, getValue) => items.reduce((total, item) => total + getValue(item), 0);

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const root = resolve(process.argv[2] ?? fileURLToPath(new URL("..", import.meta.url)));
  const { passed: numPassed, failed: numFailed, failures } = countTests(root);
  for (const line of failures) console.error(`FAILED: ${line}`);
  console.log(`${numPassed} passed, ${numFailed} failed`);
  process.exit(numFailed > 0 || numPassed === 0 ? 1 : 0);
}
