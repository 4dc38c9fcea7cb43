import { once } from "node:events";
import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { Channel } from "../../src/agent/channel.ts";

/** Resolves to the reason that a channel reports when its stream fails with an error of this code. */
async function getEndReason(code: string): Promise<string> {
  const stream = new PassThrough();
  const reasons: string[] = [];
  const channel = new Channel(stream, { onContent: () => {}, onEnd: (reason) => reasons.push(reason) });
  const closeEvent = once(stream, "close");
  stream.destroy(Object.assign(new Error(`read ${code}`), { code }));
  await closeEvent.catch(() => {});
  expect([channel.isOpen, reasons.length]).toEqual([false, 1]);
  return reasons[0]!;
}

test.each(["ECONNRESET", "EPIPE"])("%s is reported as a closed connection", async (code) => {
  expect(await getEndReason(code)).toBe("connection closed");
});

test("other errors of a connection are reported with their own messages", async () => {
  expect(await getEndReason("ETIMEDOUT")).toBe("read ETIMEDOUT");
});
