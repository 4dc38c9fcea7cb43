import { expect, test } from "vitest";
import { checkWords } from "../check-words.mjs";
import { describePackage, createRepository } from "./fixture.mjs";

const checkSource = (text, name = "src/a.ts") =>
  checkWords(createRepository(describePackage("core", {}, { [name]: text })));

test("accepts technical terms, and words that only contain a listed word", () => {
  const text = "// reports, states; essays, newest, addressed, github, clone, unknown\nconst knownRanks = 1;\n";
  expect(checkSource(text)).toEqual([]);
});

test.each([
  ["// The rank says goodbye.", ['"says"', '"goodbye"']],
  ["const lonelyRank = 1;", ['"lonely"']],
  ["const MAX_PATIENCE = 1;", ['"PATIENCE"']],
  ["export class HubServer {}", ['"Hub"']],
  ['throw new Error("has not heard of rank 1");', ['"heard"']],
  ["/** The how manyeth launch; waits in vain. */", ['"how manyeth"', '"in vain"']],
  ["// What the driver knows, wants and tells.", ['"knows"', '"wants"', '"tells"']],
  ["// Unknown options are what it does not know.", ['"does not know"']],
  ["using dressed = dress(device);", ['"dress"', '"dressed"']],
  ["// The knobs of an emulated driver", ['"knobs"']],
  ["// Trouble, guests, news and whereabouts", ['"Trouble"', '"guests"', '"news"', '"whereabouts"']],
  ["// Yours to dispose; twice is fine, whoever asks", ['"Yours to dispose"', '"twice is fine"', '"whoever"']],
  ["// What came from afar, and one's own: it nests unasked", ['"from afar"', '"one\'s own"', '"unasked"']],
  ['const error = "it has another secret; may be given again";', ['"another secret"', '"may be given again"']],
  ["class TravellingQueries {}", ['"Travelling Queries"']],
])("finds %s", (line, expectedWords) => {
  const faults = checkSource(`\n${line}\n`);
  expect(new Set(faults.map((fault) => fault.split(": ")[1]))).toEqual(new Set(expectedWords));
  expect(faults).toHaveLength(expectedWords.length);
  expect(faults[0]).toMatch(/^packages\/core\/src\/a\.ts:2: "/);
});

test("checks native code, documents and file names, and proposes a term", () => {
  expect(checkSource("/// says what\n", "native/a.cu")).toHaveLength(1);
  expect(checkSource("It says what.\n", "README.md")).toHaveLength(1);
  expect(checkSource("", "src/patience.ts")).toEqual([
    'packages/core/src/patience.ts: the file name contains "patience"; use: timeout',
  ]);
});

test("ignores allowed phrases, decisions and results", () => {
  expect(checkSource("[19](docs/decisions/0019-nccl-and-a-hub.md)\n", "README.md")).toEqual([]);
  expect(checkSource("[19](docs/decisions/0019-nccl-and-a-hub.md) is a hub\n", "README.md")).toHaveLength(1);
  const historicalFiles = {
    "docs/decisions/0019-nccl-and-a-hub.md": "A hub.",
    "benchmarks/results/a.md": "It says so.",
  };
  expect(checkWords(createRepository({ ...describePackage("core"), ...historicalFiles }))).toEqual([]);
});
