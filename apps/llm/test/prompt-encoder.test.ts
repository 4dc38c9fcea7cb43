import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadTokenizer, type Tokenizer } from "@mosaic/models";
import { afterAll, beforeAll, expect, test } from "vitest";
import { PromptEncoder } from "../src/serve/prompt-encoder.ts";
import { writeServedFolder } from "./served-folder.ts";

const folder = mkdtempSync(join(tmpdir(), "llm-prompt-test-"));
const workerEntry = new URL("../dist/prompt-worker.js", import.meta.url);
/** A worker that never responds. */
const silentEntry = new URL("data:text/javascript,setInterval(() => {}, 60_000)");
const prompt = { text: "In the beginning was the Word. ".repeat(1000), field: "prompt", addSpecialTokens: true };
let tokenizer: Tokenizer;
beforeAll(async () => {
  await writeServedFolder(folder);
  tokenizer = await loadTokenizer(folder);
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test("a waiting prompt is not encoded after its client has disconnected", async () => {
  const encoder = new PromptEncoder(tokenizer, { folder, workerEntry, maxWaiting: 2 });
  const disconnect = new AbortController();
  const [first, second, third] = [new AbortController(), disconnect, new AbortController()].map(({ signal }) =>
    encoder.encode(prompt, signal),
  );
  disconnect.abort();
  await expect(second).rejects.toThrow(/aborted/);
  expect(await third).toEqual(await first);
});

test("a long prompt is refused while the maximum number of others waits, and accepted afterwards", async () => {
  const encoder = new PromptEncoder(tokenizer, { folder, workerEntry, maxWaiting: 1 });
  const { signal } = new AbortController();
  const acceptedPrompts = [1, 2].map(() => encoder.encode(prompt, signal));
  await expect(encoder.encode(prompt, signal)).rejects.toMatchObject({
    status: 429,
    message: "the queue is full: 1 requests are waiting, the limit is 1; try again later",
  });
  expect(await encoder.encode({ ...prompt, text: "In the" }, signal)).toEqual(tokenizer.encode("In the"));
  const [expectedTokens] = await Promise.all(acceptedPrompts);
  expect(await encoder.encode(prompt, signal)).toEqual(expectedTokens);
});

test("a prompt whose client has disconnected leaves the queue while an earlier prompt is encoded", async () => {
  const encoder = new PromptEncoder(tokenizer, { folder, workerEntry: silentEntry, maxWaiting: 1 });
  const { signal } = new AbortController();
  void encoder.encode(prompt, signal);
  for (let i = 0; i < 3; i++) {
    const disconnect = new AbortController();
    const waitingPrompt = encoder.encode(prompt, disconnect.signal);
    await expect(encoder.encode(prompt, signal)).rejects.toMatchObject({ status: 429 });
    disconnect.abort();
    await expect(waitingPrompt).rejects.toThrow(/aborted/);
  }
});

test("a very long prompt whose client has disconnected does not block later ones", async () => {
  const slowEntry = new URL(
    `data:text/javascript,import { parentPort } from "node:worker_threads";
    parentPort.on("message", ({ text }) => {
      while (text.startsWith("slow"));
      parentPort.postMessage({ tokens: [text.length] });
    });`,
  );
  const encoder = new PromptEncoder(tokenizer, { folder, workerEntry: slowEntry, maxWaiting: 1 });
  const disconnect = new AbortController();
  const slowPrompt = encoder.encode({ ...prompt, text: "slow".repeat(100_000) }, disconnect.signal);
  const { signal } = new AbortController();
  const waitingPrompt = encoder.encode(prompt, signal);
  disconnect.abort();
  await expect(slowPrompt).rejects.toThrow(/aborted/);
  expect(await waitingPrompt).toEqual([prompt.text.length]);
  expect(await encoder.encode(prompt, signal)).toEqual([prompt.text.length]);
});

test("closing rejects prompts that are being encoded, that wait, and that arrive later", async () => {
  const encoder = new PromptEncoder(tokenizer, { folder, workerEntry: silentEntry, maxWaiting: 1 });
  const { signal } = new AbortController();
  const pendingPrompts = [1, 2].map(() => encoder.encode(prompt, signal));
  const error = new Error("the ranks have exited");
  encoder.close(error);
  for (const pendingPrompt of pendingPrompts) await expect(pendingPrompt).rejects.toBe(error);
  for (const text of [prompt.text, "In the"])
    await expect(encoder.encode({ ...prompt, text }, signal)).rejects.toBe(error);
});

test("the failure of the thread that encodes prompts is an error of the prompt", async () => {
  const missingEntry = new URL("../dist/missing.js", import.meta.url);
  const encoder = new PromptEncoder(tokenizer, { folder, workerEntry: missingEntry, maxWaiting: 2 });
  const { signal } = new AbortController();
  for (let i = 0; i < 2; i++) await expect(encoder.encode(prompt, signal)).rejects.toThrow(/missing.js/);
  const foreignEncoder = new PromptEncoder(tokenizer, { folder: join(folder, "none"), workerEntry, maxWaiting: 2 });
  await expect(foreignEncoder.encode(prompt, signal)).rejects.toThrow(/tokenizer.json/);
  expect(await foreignEncoder.encode({ ...prompt, text: "In the" }, signal)).toEqual(tokenizer.encode("In the"));
});
