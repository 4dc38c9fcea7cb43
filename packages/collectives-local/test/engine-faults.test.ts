import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CollectiveMismatchError, type Device, DeviceError, MosaicError, PeerLostError } from "@mosaic/core";
import { decode, encode, type Frame, type FrameOf, FrameReader } from "@mosaic/launcher/agent";
import { connectRank, createInProcessControl } from "@mosaic/runtime";
import { expect, onTestFinished, test } from "vitest";
import { openTransport } from "../src/local.ts";
import { TestDevice } from "./device.ts";

/** Starts a server in place of an agent. `handleFrame` receives each frame of a rank. Resolves to its path. */
async function listenAsAgent(handleFrame: (frame: Frame, reply: (frame: Frame) => void) => void): Promise<string> {
  const directory = mkdtempSync(join(tmpdir(), "faults-"));
  const path = join(directory, "agent");
  const server = createServer((socket: Socket) => {
    const reader = new FrameReader();
    socket
      .on("error", () => {})
      .on("data", (chunk: Buffer) => {
        reader.push(chunk);
        for (let frame = reader.next(); frame; frame = reader.next())
          handleFrame(decode(frame), (replyFrame) => void socket.write(encode(replyFrame)));
      });
  });
  server.listen({ path });
  await once(server, "listening");
  onTestFinished(() => {
    server.close();
    rmSync(directory, { recursive: true, force: true });
  });
  return path;
}

type Colors = Pick<FrameOf<"colors">, "ranks" | "colors">;

/** Splits on rank 0 of 2, whose agent returns these colors for any split. Rank 1 does not exist. */
async function splitWithColors(colors: Colors): Promise<unknown> {
  const path = await listenAsAgent((frame, reply) => {
    const self = { host: 0, pid: process.pid };
    if (frame.kind === "join")
      reply({ kind: "memberTable", world: 0, hosts: ["n0"], members: [self, { ...self, pid: 1 }] });
    if (frame.kind === "get") reply({ kind: "value", world: 0, key: frame.key, value: Buffer.alloc(0) });
    if (frame.kind === "split") reply({ kind: "colors", world: 0, group: frame.group, index: frame.index, ...colors });
  });
  const device = new TestDevice();
  const agent = { path, secret: "", world: "w", attempt: 0 };
  const world = await connectRank({ device, rank: 0, size: 2, timeout: 5, openTransport, control: { agent } });
  try {
    return await world.split(0).catch((error: unknown) => error);
  } finally {
    await world[Symbol.asyncDispose]();
    device[Symbol.dispose]();
  }
}

test("a split that receives too few colors fails with an error and does not end the process", async () => {
  const error = await splitWithColors({ ranks: [[0, 1]], colors: BigInt64Array.of(0n) });
  expect(error).toBeInstanceOf(DeviceError);
  expect((error as Error).message).toBe(
    "rank 0: split #1 (world): expected the colors of 2 ranks from the control plane, received 1",
  );
});

test("a frame without exactly one color per rank disconnects the control plane", async () => {
  const error = await splitWithColors({ ranks: [[0, 2]], colors: BigInt64Array.of(0n) });
  expect(error).toBeInstanceOf(PeerLostError);
  expect((error as Error).message).toContain(
    "invalid frame from the agent: expected 2 colors, one per rank, received 1",
  );
});

test("a rank whose size differs from that of its world is rejected", async () => {
  using device = new TestDevice();
  const connecting = connectRank({ device, rank: 0, size: 3, openTransport, control: createInProcessControl(1) });
  await expect(connecting).rejects.toThrow(CollectiveMismatchError);
  await expect(connecting).rejects.toThrow(/rank 0: expected a world of 3 ranks, received a world of 1 ranks; /);
  const outOfRangeRank = connectRank({ device, rank: 2, size: 3, openTransport, control: createInProcessControl(1) });
  await expect(outOfRangeRank).rejects.toThrow(MosaicError);
});

test("a device with a port is rejected before its handle is used as a CPU stream", async () => {
  const stream = { handle: 8n, port: 8n };
  const device = { type: "cuda", index: 0, stream } as unknown as Device;
  const connecting = connectRank({ device, rank: 0, size: 1, openTransport, control: createInProcessControl(1) });
  await expect(connecting).rejects.toThrow("collectives: shared memory supports only devices with a CPU stream");
});
