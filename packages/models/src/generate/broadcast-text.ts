import { type Context, empty, fromArray, type Tensor } from "@mosaic/core";

/** Numbers of the first message: the length of the text, and its beginning, which is all of most texts. */
const headSize = 64;

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
  const headMessage = new Float32Array(headSize);
  headMessage[0] = codeUnits.length;
  headMessage.set(codeUnits.subarray(0, headSize - 1), 1);
  const [length, ...headUnits] = await broadcast(headMessage);
  const remainingUnits =
    length! < headSize ? [] : await broadcast(padNumbers(codeUnits.subarray(headSize - 1), length! - headSize + 1));
  let received = "";
  for (const codeUnit of [...headUnits.slice(0, length), ...remainingUnits]) received += String.fromCharCode(codeUnit);
  return received;
}

function padNumbers(values: Float32Array, length: number): Float32Array {
  const paddedValues = new Float32Array(length);
  paddedValues.set(values.subarray(0, length));
  return paddedValues;
}
