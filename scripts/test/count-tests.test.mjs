import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { countTests } from "../count-tests.mjs";
import { describePackage, createRepository } from "./fixture.mjs";

/** Returns a vitest report. States are "passed", "failed", or undefined for a test that did not finish. */
function report(...files) {
  const states = files.flatMap((file) => file.states);
  const countStates = (expectedState) => states.filter((state) => state === expectedState).length;
  return {
    numTotalTests: states.length,
    numPassedTests: countStates("passed"),
    numPendingTests: 0,
    numTodoTests: 0,
    testResults: files.map(({ status, states }) => ({
      name: "test/sum.test.ts",
      status,
      message: states.length === 0 ? "Cannot find module\nRequire stack" : "",
      assertionResults: states.map((state, i) => ({
        status: state,
        fullName: `test ${i}`,
        failureMessages: state === "failed" ? ["expected 1\n    at sum.ts"] : [],
      })),
    })),
  };
}

const createFile = (status, ...states) => ({ status, states });
/** Returns the result of `countTests` for a repository with only this report. Paths are those of the reports. */
function countFile(testFile) {
  const root = createRepository({ ...describePackage("core") });
  for (const result of testFile.testResults) result.name = join(root, result.name);
  mkdirSync(join(root, "packages/core/build"));
  writeFileSync(join(root, "packages/core/build/test-report.json"), JSON.stringify(testFile));
  return countTests(root);
}

test("adds up the reports of packages, apps, scripts and documents", () => {
  const root = createRepository({
    ...describePackage("core"),
    ...describePackage("apps/demo"),
    ...describePackage("nn"),
    "packages/core/build/test-report.json": report(createFile("passed", "passed", "passed", "passed")),
    "apps/demo/build/test-report.json": report(createFile("failed", "passed", "failed", "failed")),
    "scripts/build/test-report.json": report(createFile("passed", "passed", "passed")),
    "build/doc-examples/build/test-report.json": report(createFile("passed", "passed")),
  });
  expect(countTests(root)).toMatchObject({ passed: 7, failed: 2 });
});

test("a file that cannot be loaded counts as a failure", () => {
  expect(countFile(report(createFile("failed")))).toEqual({
    passed: 0,
    failed: 1,
    failures: ["test/sum.test.ts: Cannot find module"],
  });
});

test("a failed test is listed with the first line of its message", () => {
  expect(countFile(report(createFile("failed", "passed", "failed"))).failures).toEqual([
    "test/sum.test.ts > test 1: expected 1",
  ]);
});

test("tests that did not finish count as failures", () => {
  expect(countFile(report(createFile("passed", "passed", undefined, undefined)))).toEqual({
    passed: 1,
    failed: 2,
    failures: ["test/sum.test.ts > test 1: no message", "test/sum.test.ts > test 2: no message"],
  });
});

test("a repository without reports has no passed and no failed tests", () => {
  expect(countTests(createRepository(describePackage("core")))).toEqual({ passed: 0, failed: 0, failures: [] });
});
