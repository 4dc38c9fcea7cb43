import { collectivesSuite, failureSuite } from "@mosaic/conformance";
import { describe, test } from "vitest";
import { makeWorld } from "./ranks.ts";

describe.each(["lo", undefined])("network %s", (network) => {
  const suite = [...collectivesSuite(makeWorld({ network })), ...failureSuite(makeWorld({ network }))];
  test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());
});
