import { expect, test } from "vitest";
import { reverseFlow, totalTraffic } from "../../src/context-parallel/traffic.ts";

const kv = { bytesPerRow: [8, 8], sent: [100, 0, 50], received: [30] };

test("totalTraffic counts one message per tensor of each non-empty chunk", () => {
  expect(totalTraffic([kv])).toEqual({ bytesSent: 16 * 150, bytesReceived: 16 * 30, messagesSent: 4 });
  expect(totalTraffic([])).toEqual({ bytesSent: 0, bytesReceived: 0, messagesSent: 0 });
});

test("totalTraffic adds flows, and reverseFlow swaps directions with its own bytes per row", () => {
  expect(totalTraffic([kv, reverseFlow(kv, [4])])).toEqual({
    bytesSent: 16 * 150 + 4 * 30,
    bytesReceived: 16 * 30 + 4 * 150,
    messagesSent: 4 + 1,
  });
});
