// Exchanges texts and files between ranks, over the process groups for tensors. Three bytes are encoded as an integer
// below 2²⁴ in a float32. This is exact on every device, whereas the bit pattern of a NaN may change.
import { open } from "node:fs/promises";
import { type Context, empty, fromArray, MosaicError } from "@mosaic/core";

/** Number of bytes of a file per message. */
const MESSAGE_BYTES = 12 * 2 ** 20;

function packBytes(bytes: Uint8Array): Float32Array {
  const packedWords = new Float32Array(Math.ceil(bytes.length / 3));
  const numFullWords = Math.floor(bytes.length / 3);
  for (let i = 0; i < numFullWords; i++)
    packedWords[i] = bytes[3 * i]! + 256 * bytes[3 * i + 1]! + 65_536 * bytes[3 * i + 2]!;
  if (numFullWords < packedWords.length)
    packedWords[numFullWords] = bytes[3 * numFullWords]! + 256 * (bytes[3 * numFullWords + 1] ?? 0);
  return packedWords;
}

function unpackBytes(packedWords: Float32Array, bytes: number): Uint8Array {
  const unpackedBytes = new Uint8Array(packedWords.length * 3);
  for (let i = 0; i < packedWords.length; i++) {
    const word = packedWords[i]!;
    unpackedBytes[3 * i] = word & 255;
    unpackedBytes[3 * i + 1] = (word >> 8) & 255;
    unpackedBytes[3 * i + 2] = word >> 16;
  }
  return unpackedBytes.subarray(0, bytes);
}

/** Returns the text of every rank, by rank. */
async function allGatherTexts(ctx: Context, text: string, label: string): Promise<readonly string[]> {
  if (ctx.size === 1) return [text];
  const encodedText = new TextEncoder().encode(text);
  using ownLength = fromArray(ctx, [Math.floor(encodedText.length / 2 ** 24), encodedText.length % 2 ** 24], [2]);
  using allLengths = empty(ctx, [2 * ctx.size]);
  ctx.world.allGather(allLengths, ownLength, { label }).wait();
  const words = await allLengths.read();
  const lengths = Array.from({ length: ctx.size }, (_, rank) => words[2 * rank]! * 2 ** 24 + words[2 * rank + 1]!);
  const counts = lengths.map((length) => Math.ceil(length / 3));
  using ownWords = fromArray(ctx, packBytes(encodedText), [counts[ctx.rank]!]);
  using allWords = empty(ctx, [counts.reduce((sum, count) => sum + count)]);
  ctx.world.allGather(allWords, ownWords, { label, counts }).wait();
  const packedWords = await allWords.read();
  let textStart = 0;
  return lengths.map((length, rank) => {
    const end = textStart + counts[rank]!;
    const bytes = unpackBytes(packedWords.subarray(textStart, end), length);
    textStart = end;
    return new TextDecoder().decode(bytes);
  });
}

/** Outcome of a call on one rank: a JSON value, or the error message. */
type RankOutcome<T> = { readonly value: T } | { readonly failure: string };

/**
 * Runs `body` on every rank. Resolves to its results by rank, which must be JSON values. If it fails on any rank, all
 * ranks reject; on ranks where it succeeded, the error names the ranks that failed. Collective.
 */
export async function runOnAllRanks<T>(ctx: Context, where: string, body: () => T | Promise<T>): Promise<readonly T[]> {
  let failure: unknown;
  let outcome: RankOutcome<T>;
  try {
    outcome = { value: await body() };
  } catch (error) {
    failure = error ?? new Error(where);
    outcome = { failure: (error instanceof Error ? error.message : String(error)).slice(0, 1000) };
  }
  const texts = await allGatherTexts(ctx, JSON.stringify(outcome), where);
  if (failure !== undefined) throw failure;
  const outcomes = texts.map((text) => JSON.parse(text) as RankOutcome<T>);
  const failures = outcomes.flatMap((each, rank) => ("failure" in each ? [{ rank, message: each.failure }] : []));
  if (failures.length === 0) return outcomes.map((each) => (each as { readonly value: T }).value);
  throw new MosaicError({
    where: `${where}, rank ${ctx.rank}`,
    expected: "success on every rank",
    received: `a failure on rank ${failures.map(({ rank }) => rank).join(", ")} (${failures[0]!.message})`,
    remedy: "see the error on that rank; this rank was not modified",
  });
}

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
