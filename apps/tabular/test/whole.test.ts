import { expect, it } from "vitest";
import { parseInteger } from "../src/arguments.ts";

it("parses integers within a range, and rejects other text", () => {
  expect(parseInteger("--rows", "12", [2, 20])).toBe(12);
  for (const text of ["", "1", "21", "1.5", "-3", "1e1", "many"]) {
    expect(() => parseInteger("--rows", text, [2, 20])).toThrow(
      `--rows: expected an integer from 2 to 20, received "${text}"`,
    );
  }
  expect(() => parseInteger("--steps", "0", [1, Number.MAX_SAFE_INTEGER])).toThrow("from 1, received");
});
