// Sends files between ranks, over the process groups for tensors.
import { open } from "node:fs/promises";
import { type Context, empty, fromArray, packBytes, unpackBytes } from "@mosaic/core";

/** Number of bytes of a file per message. */
const MESSAGE_BYTES = 12 * 2 ** 20;

/** A file that one rank sends to others. */
export interface FileTransfer {
  readonly path: string;
  /** Size of the file, the same on all ranks of the transfer. */
  readonly bytes: number;
  readonly label: string;
}

/**
 * Sends a file to ranks that each call `receiveFile`. If the file cannot be read, sends zeros for the rest, and then
 * throws the error.
 */
export async function sendFile(ctx: Context, receivers: readonly number[], transfer: FileTransfer): Promise<void> {
  const { path, bytes, label } = transfer;
  let failure: unknown;
  const file = await open(path, "r").catch((error: unknown) => void (failure = error));
  try {
    for (let begin = 0; begin < bytes; begin += MESSAGE_BYTES) {
      const message = new Uint8Array(Math.min(MESSAGE_BYTES, bytes - begin));
      for (let numBytesRead = 0; numBytesRead < message.length && failure === undefined; ) {
        const { bytesRead } = await file!
          .read(message, numBytesRead, message.length - numBytesRead, begin + numBytesRead)
          .catch((error: unknown) => {
            failure = error;
            return { bytesRead: 0 };
          });
        if (bytesRead === 0)
          failure ??= new Error(
            `${path}: expected ${bytes} bytes, received ${begin + numBytesRead}: the file was truncated during the transfer`,
          );
        numBytesRead += bytesRead;
      }
      using tensor = fromArray(ctx, packBytes(message), [Math.ceil(message.length / 3)]);
      ctx.world
        .sendRecv(
          receivers.map((rank) => ({ tensor, to: rank })),
          { label },
        )
        .wait();
      // One message at a time, so that memory does not grow with the file.
      await ctx.device.stream.synchronize();
    }
  } finally {
    await file?.close();
  }
  if (failure !== undefined) throw failure;
}

/**
 * Receives a file from `sendFile`. `consume` is called with an iterable of its messages. If `consume` fails, the
 * remaining messages are still received, so that the sender does not block.
 */
export async function receiveFile<T>(
  ctx: Context,
  sender: number,
  { bytes, label }: Omit<FileTransfer, "path">,
  consume: (messages: AsyncIterable<Uint8Array>) => Promise<T>,
): Promise<T> {
  let bytesReceived = 0;
  async function* messages(): AsyncGenerator<Uint8Array> {
    while (bytesReceived < bytes) {
      const length = Math.min(MESSAGE_BYTES, bytes - bytesReceived);
      using tensor = empty(ctx, [Math.ceil(length / 3)]);
      ctx.world.sendRecv([{ tensor, from: sender }], { label }).wait();
      bytesReceived += length;
      yield unpackBytes(await tensor.read(), length);
    }
  }
  try {
    return await consume(messages());
  } catch (error) {
    try {
      for await (const _ of messages());
    } catch {
      // The transfer itself failed, and the first error reports it.
    }
    throw error;
  }
}
