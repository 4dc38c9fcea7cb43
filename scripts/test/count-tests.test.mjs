import { expect, test } from "vitest";
import { countTests } from "../count-tests.mjs";
import { pack, repository } from "./fixture.mjs";

/** A vitest report; states are "passed", "failed", or undefined for a test that never came to an end. */
function report(...files) {
  const states = files.flatMap((file) => file.states);
  const count = (wanted) => states.filter((state) => state === wanted).length;
  return {
    numTotalTests: states.length,
    numPassedTests: count("passed"),
    numPendingTests: 0,
    numTodoTests: 0,
    testResults: files.map(({ status, states }) => ({
      status,
      assertionResults: states.map((state) => ({ status: state })),
    })),
  };
}

const file = (status, ...states) => ({ status, states });
const countOf = (one) => countTests(repository({ ...pack("core"), "packages/core/build/test-report.json": one }));

test("adds up the reports of packages, apps, scripts and documents", () => {
  const root = repository({
    ...pack("core"),
    ...pack("apps/demo"),
    ...pack("nn"),
    "packages/core/build/test-report.json": report(file("passed", "passed", "passed", "passed")),
    "apps/demo/build/test-report.json": report(file("failed", "passed", "failed", "failed")),
    "scripts/build/test-report.json": report(file("passed", "passed", "passed")),
    "build/doc-examples/build/test-report.json": report(file("passed", "passed")),
  });
  expect(countTests(root)).toEqual({ passed: 7, failed: 2 });
});

test("a file that cannot be loaded counts as a failure", () => {
  expect(countOf(report(file("failed")))).toEqual({ passed: 0, failed: 1 });
});

test("tests whose worker died count as failures", () => {
  expect(countOf(report(file("passed", "passed", undefined, undefined)))).toEqual({ passed: 1, failed: 2 });
});

test("nothing run is nothing passed", () => {
  expect(countTests(repository(pack("core")))).toEqual({ passed: 0, failed: 0 });
});
