import { expect, test } from "vitest";
import { environmentFlag } from "../src/environment-flag.ts";

test("an environment variable is on unless it is unset, empty or a word for off, in any case", () => {
  const isOn = (value: string | undefined) => environmentFlag("FLAG", { FLAG: value, OTHER: "1" });
  for (const value of ["1", "true", "YES", "on", "2"]) expect(isOn(value), value).toBe(true);
  for (const value of [undefined, "", "0", "false", "False", "no", "OFF"]) expect(isOn(value), value).toBe(false);
  expect(environmentFlag("MOSAIC_A_VARIABLE_THAT_IS_NOT_SET")).toBe(false);
});

test("invalid arguments are rejected", () => {
  expect(() => environmentFlag(3 as never)).toThrow(/environmentFlag: expected the name of a variable, received 3/);
  expect(() => environmentFlag("A", null as never)).toThrow(/environmentFlag: environment: expected an object/);
});
