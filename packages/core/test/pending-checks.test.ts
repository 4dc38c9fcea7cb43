import { expect, test } from "vitest";
import { fromArray } from "../src/creation.ts";
import { addPendingCheck, completeChecks, readAfterChecks } from "../src/pending-checks.ts";
import { ReferenceDevice } from "./reference/index.ts";

/** Posts a check of a device. Returns the function that completes it. */
function postCheck(device: ReferenceDevice): (error?: Error) => void {
  let complete: ((error?: Error) => void) | undefined;
  addPendingCheck(device, new Promise((resolve) => (complete = resolve)));
  return complete!;
}

test("a read waits for all checks that were posted before, and errors are reported once, in the order of checks", async () => {
  const device = new ReferenceDevice();
  using x = fromArray(device, [7], [1]);
  const completions = [postCheck(device), postCheck(device), postCheck(device)];
  const reads = [x.read(), x.read(), x.read()];
  const outcomes = Promise.allSettled(reads);
  completions[2]!(new Error("third"));
  completions[1]!();
  await device.stream.synchronize();
  completions[0]!(new Error("first"));
  expect(
    (await outcomes).map((outcome) => (outcome.status === "rejected" ? String(outcome.reason) : "values")),
  ).toEqual(["Error: first", "Error: third", "values"]);
});

test("a check that cannot be made is not reported", async () => {
  const device = new ReferenceDevice();
  using x = fromArray(device, [7], [1]);
  addPendingCheck(device, Promise.reject(new Error("a rank was lost")));
  expect([...(await x.read())]).toEqual([7]);
  await completeChecks(device);
});

test("completeChecks waits for checks, and rejects with an error that no read has reported", async () => {
  const device = new ReferenceDevice();
  const complete = postCheck(device);
  const closing = completeChecks(device).then(String, String);
  complete(new Error("differs"));
  expect(await closing).toBe("Error: differs");
  expect(await completeChecks(device).then(String)).toBe("undefined");
});

test("the error of a check precedes that of the read, which is then not an unhandled rejection", async () => {
  const device = new ReferenceDevice();
  const complete = postCheck(device);
  const read = readAfterChecks(device, Promise.reject(new Error("read")));
  const outcome = read.then(String, String);
  const unhandledErrors: unknown[] = [];
  const recordUnhandled = (reason: unknown) => unhandledErrors.push(reason);
  process.on("unhandledRejection", recordUnhandled);
  try {
    // Node reports unhandled rejections before the next macrotask.
    await new Promise((resolve) => setImmediate(resolve));
    complete(new Error("check"));
    expect(await outcome).toBe("Error: check");
  } finally {
    process.off("unhandledRejection", recordUnhandled);
  }
  expect(unhandledErrors).toEqual([]);
});
