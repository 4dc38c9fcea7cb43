import { parentPort, workerData } from "node:worker_threads";
import { loadTokenizer } from "@mosaic/models";
import { type EncodedPrompt, encodePrompt, type Prompt, type PromptWorkerData } from "./prompt-encoder.ts";

// The thread that encodes long prompts, so that the thread of the server responds to other requests meanwhile.

const { folder } = workerData as PromptWorkerData;
const tokenizerPromise = loadTokenizer(folder);

parentPort!.on("message", (prompt: Prompt) => void encode(prompt));

async function encode(prompt: Prompt): Promise<void> {
  let result: EncodedPrompt;
  try {
    result = encodePrompt(await tokenizerPromise, prompt);
  } catch (error) {
    result = { message: (error as Error).message };
  }
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- of a thread, not of a window
  parentPort!.postMessage(result);
}
