import { describe, expect, it } from "vitest";
import { UsageError } from "@mosaic/program";
import { help, parseSettings } from "../src/args.ts";

describe("the command line", () => {
  it("defaults to the whole genome on four ranks", () => {
    expect(parseSettings([])).toMatchObject({
      tokens: 48_502,
      ranks: 4,
      backend: "ring",
      mask: { name: "full" },
      placement: "contiguous",
      json: false,
    });
  });

  it("parses every option that the help lists", () => {
    const line =
      "--tokens 150000 --ranks 3 --device cpu --backend ring --mask documents:9 --placement striped --dtype bfloat16 --backward --heads 1 --dim 32 --seed 5 --svg x.svg --dispatch z.svg --predict y.svg --html w.html --json";
    expect(parseSettings(line.split(" "))).toEqual({
      tokens: 150_000,
      ranks: 3,
      device: "cpu",
      backend: "ring",
      mask: { name: "documents", argument: 9 },
      placement: "striped",
      dtype: "bfloat16",
      backward: true,
      numHeads: 1,
      headDim: 32,
      seed: 5,
      svgPath: "x.svg",
      dispatchPicturePath: "z.svg",
      predictionPicturePath: "y.svg",
      htmlPath: "w.html",
      json: true,
    });
    for (const option of line.match(/--[a-z]+/g) ?? []) expect(help).toContain(option);
  });

  it.each([
    ["--backend mesh2d", { ranks: 4, shape: [2, 2] }],
    ["--backend mesh2d --ranks 8", { ranks: 8, shape: [2, 4] }],
    ["--backend mesh2d --ranks 7", { ranks: 7, shape: [1, 7] }],
    ["--backend mesh2d --mesh 4x2", { ranks: 8, shape: [4, 2] }],
    ["--backend hierarchical --ranks 6", { ranks: 6, shape: [2, 3] }],
    ["--backend hierarchical --ranks 1", { ranks: 1, shape: [1, 1] }],
    ["--backend composed --ranks 8", { ranks: 8, shape: [2, 4] }],
    ["--backend composed --ranks 8 --heads 12", { ranks: 8, shape: [2, 4] }],
    ["--backend composed --ranks 6 --heads 3", { ranks: 6, shape: [3, 2] }],
    ["--backend composed --ranks 5", { ranks: 5, shape: [1, 5] }],
    ["--backend composed --mesh 4x1 --ranks 4", { ranks: 4, shape: [4, 1] }],
  ])("sets the shape of the ranks: %s", (line, expected) => {
    expect(parseSettings(line.split(" "))).toMatchObject(expected);
  });

  it.each([
    ["", { mask: { name: "full" }, placement: "contiguous" }],
    ["--causal", { mask: { name: "causal" }, placement: "zigzag" }],
    ["--causal --mask causal", { mask: { name: "causal" }, placement: "zigzag" }],
    ["--mask documents", { mask: { name: "documents", argument: 32 }, placement: "contiguous" }],
    ["--mask documents --tokens 5", { mask: { name: "documents", argument: 5 } }],
    ["--mask window --tokens 100", { mask: { name: "window", argument: 7 }, placement: "contiguous" }],
    ["--mask block-causal:10", { mask: { name: "block-causal", argument: 10 }, placement: "zigzag" }],
    ["--mask block-causal --tokens 1", { mask: { name: "block-causal", argument: 1 } }],
    ["--backend flex --causal", { mask: { name: "causal" }, placement: "dispatch" }],
    ["--backend flex --stages 0", { stages: 0 }],
    ["--backend flex --placement contiguous", { mask: { name: "full" }, placement: "contiguous" }],
    [
      "--backend mesh2d --mask window:3 --placement dispatch",
      { mask: { name: "window", argument: 3 }, placement: "dispatch" },
    ],
  ])("parses the mask and chooses the placement: %s", (line, expected) => {
    expect(parseSettings(line.split(" ").filter((word) => word !== ""))).toMatchObject(expected);
  });

  it("shows the help on request", () => {
    expect(parseSettings(["-h"])).toBe("help");
    expect(parseSettings(["--help"])).toBe("help");
  });

  it.each([
    ["--tokens 0", /--tokens: expected an integer from 1/],
    ["--tokens 1e3", /--tokens: expected an integer/],
    ["--ranks 65", /--ranks: .* to 64, received "65"/],
    ["--dim 33", /--dim: expected an even number/],
    ["--dtype float64", /--dtype: expected one of float32, bfloat16, float16, received "float64"/],
    ["--backend star", /--backend: expected one of ring, mesh2d, .*, local, received "star"/],
    ["--device gpu", /--device: expected one of cpu, cuda, received "gpu"/],
    ["--device cuda --backend auto", /--backend auto, --predict: expected --device cpu/],
    ["--device cuda --predict x.svg", /expected --device cpu/],
    ["--backend local", /expected --ranks 1/],
    ["--mesh 2x2", /--mesh: expected --backend mesh2d or composed or hierarchical, received ring/],
    ["--backend mesh2d --mesh 2by2", /--mesh: expected rows × columns, as in 2x4; received "2by2"/],
    ["--backend mesh2d --mesh 2x2 --ranks 6", /--mesh: expected a shape of 6 ranks, received "2x2" with 4 ranks/],
    ["--backend hierarchical --mesh 9x9", /--ranks: .* to 64, received "81"/],
    ["--svg nowhere/picture.svg", /--svg: expected a file in a directory that exists, received "nowhere\/picture.svg"/],
    ["--dispatch nowhere/load.svg", /--dispatch: expected a file in a directory that exists/],
    ["--html src", /--html: expected a file in a directory that exists, received the directory "src"/],
    ["--stages 2", /--stages: expected --backend flex, received ring/],
    ["--backend flex --stages 65", /--stages: expected an integer from 0 to 64, received "65"/],
    ["--causal --mask window", /--causal: expected no other --mask, received window/],
    ["--mask star", /--mask: expected one of full, causal, documents\[:N\], window\[:N\], .*; received "star"/],
    ["--mask documents:0", /--mask: .*with N from 1 to 48502, the number of tokens; received "documents:0"/],
    ["--mask window:65 --tokens 64", /N from 1 to 64, the number of tokens; received "window:65"/],
    ["--mask causal:3", /received "causal:3"/],
    ["--mask documents:", /received "documents:"/],
    ["--mask toString", /received "toString"/],
    ["--placement best", /--placement: expected one of contiguous, zigzag, striped, dispatch, received "best"/],
    ["--profile nowhere.json", /--profile: expected a machine profile as JSON, received "nowhere.json": ENOENT/],
    ["--profile package.json", /received "package.json": .*profile/],
    ["--predict nowhere/both.svg", /--predict: expected a file in a directory that exists/],
    ["--bogus", /--bogus/],
    ["train.ts", /train\.ts/],
  ])("rejects %s", (line, message) => {
    const parseLine = (): unknown => parseSettings(line.split(" "));
    expect(parseLine).toThrow(UsageError);
    expect(parseLine).toThrow(message);
  });
});
