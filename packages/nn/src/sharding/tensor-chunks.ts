// Tensors are copied between files and devices a chunk at a time, so that the host needs no memory for whole tensors.
import { noGrad, type Tensor } from "@mosaic/core";

/** Number of elements that are on the host at a time: 2 MiB of float32. */
const CHUNK_ELEMENTS = 2 ** 19;

/** Values of tensors by name, such as those of a file. */
export interface TensorSource {
  /** Reads elements [from, to) of a tensor, row-major. The returned memory may be overwritten by the next call. */
  readRange(name: string, from: number, to: number): Promise<Float32Array>;
}

/** Elements of a source: those of tensor `name` from index `start` on. */
export interface SourceRange {
  readonly source: TensorSource;
  readonly name: string;
  readonly start: number;
}

/**
 * Fills a tensor with consecutive elements of a source, a chunk at a time. A tensor that is not contiguous is first
 * filled into a copy on the device.
 */
export async function writeFromSource(target: Tensor, range: SourceRange): Promise<void> {
  const { device, dtype, shape } = target;
  if (target.isContiguous) return writeChunks(target, range);
  using contiguousTarget = device.empty(shape, dtype);
  await writeChunks(contiguousTarget, range);
  device.kernels.copy(target, contiguousTarget);
}

async function writeChunks(target: Tensor, { source, name, start }: SourceRange): Promise<void> {
  const { device } = target;
  for (const { from, to } of listChunks(target.size)) {
    const values = await source.readRange(name, start + from, start + to);
    using chunk = target.view({ shape: [to - from], strides: [1], offset: target.offset + from });
    device.write(chunk, values);
    // The device keeps a copy of the values until they are written.
    await device.stream.synchronize();
  }
}

/** Reads a tensor, row-major, a chunk at a time. */
export async function* readChunks(x: Tensor): AsyncGenerator<Float32Array> {
  using contiguous = x.isContiguous ? x.view({}) : noGrad(() => x.contiguous());
  for (const { from, to } of listChunks(contiguous.size)) {
    using chunk = contiguous.view({ shape: [to - from], strides: [1], offset: contiguous.offset + from });
    yield await chunk.read();
  }
}

/** Lists the chunks [from, to) of a number of elements. */
function listChunks(size: number): readonly { readonly from: number; readonly to: number }[] {
  return Array.from({ length: Math.ceil(size / CHUNK_ELEMENTS) }, (_, i) => ({
    from: i * CHUNK_ELEMENTS,
    to: Math.min(size, (i + 1) * CHUNK_ELEMENTS),
  }));
}
