import { type Context, empty, fromArray, type Tensor } from "@mosaic/core";

/** Numbers of the first message: the length of the text, and its beginning, which is all of most texts. */
const firstMessageSize = 64;

/** Rank 0's text on every rank; what others give is ignored. UTF-16 code units travel as float32, exact on every device. Collective. */
export async function broadcastText(ctx: Context, text: string, label: string): Promise<string> {
  if (ctx.size === 1) return text;
  const broadcast = async (numbers: Float32Array): Promise<Float32Array> => {
    using x: Tensor =
      ctx.rank === 0 ? fromArray(ctx, numbers, [numbers.length]) : empty(ctx, [numbers.length], { dtype: "float32" });
    ctx.world.broadcast(x, 0, { label }).wait();
    return await x.read();
  };
  const codeUnits = Float32Array.from({ length: text.length }, (_, i) => text.charCodeAt(i));
  const firstMessage = new Float32Array(firstMessageSize);
  firstMessage[0] = codeUnits.length;
  firstMessage.set(codeUnits.subarray(0, firstMessageSize - 1), 1);
  const [length, ...firstUnits] = await broadcast(firstMessage);
  const remainingUnits =
    length! < firstMessageSize
      ? []
      : await broadcast(padNumbers(codeUnits.subarray(firstMessageSize - 1), length! - firstMessageSize + 1));
  let received = "";
  for (const codeUnit of [...firstUnits.slice(0, length), ...remainingUnits]) received += String.fromCharCode(codeUnit);
  return received;
}

function padNumbers(values: Float32Array, length: number): Float32Array {
  const paddedValues = new Float32Array(length);
  paddedValues.set(values.subarray(0, length));
  return paddedValues;
}
