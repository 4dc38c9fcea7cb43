import { type Context, empty, fromArray, type Tensor } from "@mosaic/core";

/** Size of the first message: the length of the text and its beginning, which is all of most texts. */
const FIRST_MESSAGE_SIZE = 64;

/**
 * Returns the text of rank 0 on every rank. The argument of other ranks is ignored. UTF-16 code units are sent as
 * float32, which is exact on every device. Collective.
 */
export async function broadcastText(ctx: Context, text: string, label: string): Promise<string> {
  if (ctx.size === 1) return text;
  const broadcastNumbers = async (numbers: Float32Array): Promise<Float32Array> => {
    using x: Tensor =
      ctx.rank === 0 ? fromArray(ctx, numbers, [numbers.length]) : empty(ctx, [numbers.length], { dtype: "float32" });
    ctx.world.broadcast(x, 0, { label }).wait();
    return await x.read();
  };
  const codeUnits = Float32Array.from({ length: text.length }, (_, i) => text.charCodeAt(i));
  const firstMessage = new Float32Array(FIRST_MESSAGE_SIZE);
  firstMessage[0] = codeUnits.length;
  firstMessage.set(codeUnits.subarray(0, FIRST_MESSAGE_SIZE - 1), 1);
  const [length, ...firstCodeUnits] = await broadcastNumbers(firstMessage);
  const remainingCodeUnits =
    length! < FIRST_MESSAGE_SIZE
      ? []
      : await broadcastNumbers(
          padNumbers(codeUnits.subarray(FIRST_MESSAGE_SIZE - 1), length! - FIRST_MESSAGE_SIZE + 1),
        );
  let receivedText = "";
  for (const codeUnit of [...firstCodeUnits.slice(0, length), ...remainingCodeUnits])
    receivedText += String.fromCharCode(codeUnit);
  return receivedText;
}

function padNumbers(values: Float32Array, length: number): Float32Array {
  const paddedValues = new Float32Array(length);
  paddedValues.set(values.subarray(0, length));
  return paddedValues;
}
