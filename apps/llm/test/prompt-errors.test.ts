import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { PromptEncoder } from "../src/serve/prompt-encoder.ts";
import { readServedModel } from "../src/serve/served-model.ts";
import { writeServedFolder } from "./served-folder.ts";
import { model, post, promptWorker, readRefusal, setUpTestServers, startTestServer } from "./test-server.ts";

setUpTestServers();

/** The folder of a model whose tokenizer has three words and no unknown token, so that it rejects other words. */
const folder = mkdtempSync(join(tmpdir(), "llm-vocabulary-test-"));
beforeAll(async () => {
  await writeServedFolder(folder);
  const path = join(folder, "tokenizer.json");
  const tokenizer = JSON.parse(readFileSync(path, "utf8")) as object;
  const wordModel = { type: "WordLevel", vocab: { a: 1, "user:": 2, "assistant:": 3 } };
  writeFileSync(path, JSON.stringify({ ...tokenizer, model: wordModel, pre_tokenizer: { type: "WhitespaceSplit" } }));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const limits = { maxBodyBytes: 1e6 };
const sizes = { maxRunning: 2, maxWaiting: 1 };

describe.each(["prompt", "messages"])("%s", (field) => {
  /** Sends a text to the endpoint of completions or of conversations. */
  const postText = (text: string): Promise<Response> =>
    field === "prompt"
      ? post({ prompt: text })
      : post({ messages: [{ role: "user", content: text }] }, {}, "/v1/chat/completions");

  test.each([
    ["short", 1],
    ["long", 2000],
  ])("a %s text that the tokenizer rejects gets 400", async (_, count) => {
    const options = { cacheTokens: 1024, promptWorker, maxWaitingPrompts: 1 };
    await startTestServer(limits, sizes, { ...(await readServedModel(folder, options)), name: "tiny", maxLength: 1e9 });
    const response = await postText("a # ".repeat(count));
    const message = `${field}: expected a text of tokens of the vocabulary, because the tokenizer has no unknown token, received "#"; remove it from the text`;
    expect([response.status, await response.json()]).toMatchObject([400, { error: { message, param: field } }]);
  });

  test("a text gets 500 if the thread that encodes prompts has exited", async () => {
    const workerEntry = new URL("data:text/javascript,process.exit(1)");
    const encoder = new PromptEncoder(model.tokenizer, { folder, workerEntry, maxWaiting: 1 });
    await startTestServer(limits, sizes, { ...model, encoder, maxLength: 1e9 });
    const write = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    try {
      expect(await readRefusal(await postText("a ".repeat(5000)))).toEqual([500, null, null]);
      expect(write).toHaveBeenCalledWith(expect.stringContaining("the thread that encodes prompts has exited"));
    } finally {
      write.mockRestore();
    }
  });
});

/** Serves the tiny model with a chat template, and sends a message of a user to it. */
async function postToTemplate(chatTemplate: string): Promise<Response> {
  const templateFolder = mkdtempSync(join(tmpdir(), "llm-template-test-"));
  try {
    cpSync(folder, templateFolder, { recursive: true });
    writeFileSync(join(templateFolder, "chat_template.jinja"), chatTemplate);
    const options = { cacheTokens: 1024, promptWorker, maxWaitingPrompts: 1 };
    const servedModel = await readServedModel(templateFolder, options);
    await startTestServer(limits, sizes, { ...servedModel, name: "tiny" });
  } finally {
    rmSync(templateFolder, { recursive: true });
  }
  return post({ messages: [{ role: "user", content: "a" }] }, {}, "/v1/chat/completions");
}

test("messages that the chat template rejects get 400", async () => {
  const response = await postToTemplate("{{ raise_exception('no users') }}");
  const message = expect.stringContaining("received no users") as string;
  expect([response.status, await response.json()]).toMatchObject([400, { error: { message, param: "messages" } }]);
});

test.each(["{% if %}", "{{ messages[0].content | unknown_filter }}"])(
  "messages get 500 if the chat template fails: %s",
  async (chatTemplate) => {
    const write = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    try {
      expect(await readRefusal(await postToTemplate(chatTemplate))).toEqual([500, null, null]);
      expect(write).toHaveBeenCalledWith(expect.stringContaining("FileError"));
    } finally {
      write.mockRestore();
    }
  },
);
