import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { folderFilePaths } from "../src/model-folder.ts";
import { writeServedFolder } from "./served-folder.ts";

const folder = mkdtempSync(join(tmpdir(), "llm-commands-test-"));
const model = join(folder, "tiny");
const file = join(folder, "file");
afterAll(() => rmSync(folder, { recursive: true, force: true }));
beforeAll(async () => {
  await writeServedFolder(model);
  writeFileSync(file, "");
});

interface CommandResult {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function run(...args: readonly string[]): CommandResult {
  const main = fileURLToPath(new URL("../dist/main.js", import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, [main, ...args], { encoding: "utf8" });
  return { status, stdout, stderr };
}

test.each([
  [["generate", "--model", folder], /^--model: expected a folder with config.json/],
  [["perplexity", "--model", folder], /^--model: expected a folder with config.json/],
  [["generate", "--model", model, "--prompt", ""], /^--prompt: expected at least one token, received ""/],
  [
    ["generate", "--model", model, "--prompt", "In the beginning ".repeat(40)],
    /^--prompt: expected fewer than 128 tokens, the maximum length of the model, received \d+/,
  ],
  [
    ["needle", "--model", model, "--backend", "local"],
    /^--backend: expected ring, flex or ulysses if --ranks exceeds 1/,
  ],
  [["trian"], /^command: expected one of train, .*, received "trian"; see --help$/],
  [["train", "--stepz", "1"], /^Unknown option '--stepz'; --help lists all options$/],
  [["train", "--steps"], /^Option '--steps <value>' argument missing; --help lists all options$/],
  [
    ["train", "--steps", "-1"],
    /^Option '--steps' argument is ambiguous; .* use '--steps=-XYZ'; --help lists all options$/,
  ],
  [["train", "extra"], /^Unexpected argument 'extra'. .*; --help lists all options$/],
  [["train", "--out", file], /^--out: expected a folder that can be written, received .*file: ENOTDIR/],
])("%j is a usage error before ranks are started", (args, message) => {
  const { status, stdout, stderr } = run(...args);
  expect([status, stdout]).toEqual([2, ""]);
  expect(stderr.slice(0, -1)).toMatch(message);
  expect(stderr.split("\n")).toEqual([expect.anything(), ""]);
});

test("generate writes the prompt and its continuation", () => {
  const args = ["--model", model, "--ranks", "1", "--backend", "local", "--prompt", "In the", "--tokens", "4"];
  const [first, second] = [run("generate", ...args), run("generate", ...args)];
  expect(first.status).toBe(0);
  expect(first.stdout).toMatch(/^In the[^]*\n$/);
  expect(second.stdout).toBe(first.stdout);
});

test("train succeeds for a completed training whose curve was deleted", () => {
  const out = join(folder, "trained");
  const sizes = "--vocabulary 300 --hidden 32 --layers 1 --heads 2 --kv-heads 1 --length 32 --batch 1".split(" ");
  const args = [...sizes, "--minutes", "0", "--steps", "1", "--ranks", "1", "--backend", "local", "--out", out];
  expect(run("train", ...args)).toMatchObject({ status: 0, stdout: expect.stringMatching(/^trained: step 1, loss/) });
  expect(run("train", ...args).stdout).toMatch(/^training already completed: step 1, loss/);
  rmSync(folderFilePaths(out).curve);
  expect(run("train", ...args)).toMatchObject({
    status: 0,
    stdout: expect.stringMatching(
      /^training already completed, but .*curve.jsonl has no steps to draw; the model is in/,
    ),
  });
});
