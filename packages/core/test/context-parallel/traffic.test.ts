import { expect, test } from "vitest";
import { reverseFlow, totalTraffic } from "../../src/context-parallel/traffic.ts";

const kv = { bytesPerRow: [8, 8], sent: [100, 0, 50], received: [30] };

test("each tensor of each chunk is a message, and an empty chunk is none", () => {
  expect(totalTraffic([kv])).toEqual({ bytesSent: 16 * 150, bytesReceived: 16 * 30, messagesSent: 4 });
  expect(totalTraffic([])).toEqual({ bytesSent: 0, bytesReceived: 0, messagesSent: 0 });
});

test("flows add up, and what returns goes the other way in bytes of its own", () => {
  expect(totalTraffic([kv, reverseFlow(kv, [4])])).toEqual({
    bytesSent: 16 * 150 + 4 * 30,
    bytesReceived: 16 * 30 + 4 * 150,
    messagesSent: 4 + 1,
  });
});
