import { once } from "node:events";
import type { Socket } from "node:net";
import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { Channel, type ServerMessage } from "../src/serve/messages.ts";

test("a message is written as one line, even if its texts contain line separators", async () => {
  const stream = new PassThrough();
  const written: string[] = [];
  stream.on("data", (bytes: Buffer) => written.push(bytes.toString()));
  const received: ServerMessage[] = [];
  const channel = new Channel<ServerMessage, ServerMessage>(stream as unknown as Socket, {
    onMessage: (message) => received.push(message),
    onClose: () => {},
  });
  const stopStrings = ["\n", "\r\n", "\u0085", "\u2028", "a\u2029b"];
  const message: ServerMessage = {
    type: "generate",
    id: 3,
    options: { tokens: [1], maxNewTokens: 2, stopStrings, seed: 0 },
  };
  channel.send(message);
  channel.close();
  await once(stream, "end");
  expect(received).toEqual([message]);
  // Which of them end a line depends on the version of Node.
  expect(written.join("")).toMatch(/^[^\r\n\u2028\u2029]+\n$/);
});
