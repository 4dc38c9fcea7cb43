import { describe, expect, it } from "vitest";
import { help, readSettings, UsageError } from "../src/args.ts";

describe("the command line", () => {
  it("defaults to the whole genome on four ranks", () => {
    expect(readSettings([])).toMatchObject({ tokens: 48_502, ranks: 4, backend: "ring", causal: false, json: false });
  });

  it("reads every option that the help names", () => {
    const line =
      "--tokens 150000 --ranks 3 --backend ring --causal --dtype bfloat16 --backward --heads 1 --dim 32 --seed 5 --svg x.svg --json";
    expect(readSettings(line.split(" "))).toEqual({
      tokens: 150_000,
      ranks: 3,
      backend: "ring",
      causal: true,
      dtype: "bfloat16",
      backward: true,
      heads: 1,
      dim: 32,
      seed: 5,
      svg: "x.svg",
      json: true,
    });
    for (const option of line.match(/--[a-z]+/g) ?? []) expect(help).toContain(option);
  });

  it("shows the help on request", () => {
    expect(readSettings(["-h"])).toBe("help");
    expect(readSettings(["--help"])).toBe("help");
  });

  it.each([
    ["--tokens 0", /--tokens: expected a whole number from 1/],
    ["--tokens 1e3", /--tokens: expected a whole number/],
    ["--ranks 65", /--ranks: .* to 64, received "65"/],
    ["--dim 33", /--dim: expected an even number/],
    ["--dtype float64", /--dtype: expected one of float32, bfloat16, float16, received "float64"/],
    ["--backend star", /--backend: expected one of ring, local, received "star"/],
    ["--backend local", /expected --ranks 1/],
    ["--bogus", /--bogus/],
    ["train.ts", /train\.ts/],
  ])("refuses %s", (line, message) => {
    const read = (): unknown => readSettings(line.split(" "));
    expect(read).toThrow(UsageError);
    expect(read).toThrow(message);
  });
});
