import { expect, test } from "vitest";
import { countTests } from "../count-tests.mjs";
import { pack, repository } from "./fixture.mjs";

const report = (numPassedTests, ...testResults) => ({ numPassedTests, testResults });
const file = (status, ...states) => ({ status, assertionResults: states.map((one) => ({ status: one })) });

test("adds up the reports of packages, apps, scripts and documents", () => {
  const root = repository({
    ...pack("core"),
    ...pack("apps/demo"),
    ...pack("nn"),
    "packages/core/build/test-report.json": report(3, file("passed", "passed", "passed", "passed")),
    "apps/demo/build/test-report.json": report(1, file("failed", "passed", "failed", "failed")),
    "scripts/build/test-report.json": report(2, file("passed", "passed", "passed")),
    "build/doc-examples/build/test-report.json": report(1, file("passed", "passed")),
  });
  expect(countTests(root)).toEqual({ passed: 7, failed: 2 });
});

test("a file that cannot be loaded counts as a failure", () => {
  const root = repository({ ...pack("core"), "packages/core/build/test-report.json": report(0, file("failed")) });
  expect(countTests(root)).toEqual({ passed: 0, failed: 1 });
});

test("nothing run is nothing passed", () => {
  expect(countTests(repository(pack("core")))).toEqual({ passed: 0, failed: 0 });
});
