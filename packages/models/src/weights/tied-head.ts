import { numel } from "@mosaic/core";
import type { SafetensorsReader } from "@mosaic/nn";
import { CHUNK_ELEMENTS } from "./chunks.ts";
import { EMBEDDING_NAME, HEAD_NAME } from "./names.ts";

/**
 * Whether a folder stores the embedding a second time as its output projection, as some do whose config ties them. Both have the same shape;
 * they are compared a range at a time, as far as they are equal.
 */
export async function isHeadEmbedding(fileByTensor: ReadonlyMap<string, SafetensorsReader>): Promise<boolean> {
  const [embeddingFile, headFile] = [fileByTensor.get(EMBEDDING_NAME)!, fileByTensor.get(HEAD_NAME)!];
  const size = numel(embeddingFile.tensors.get(EMBEDDING_NAME)!.shape);
  for (let start = 0; start < size; start += CHUNK_ELEMENTS) {
    const end = Math.min(size, start + CHUNK_ELEMENTS);
    // The memory of what is read is the file's, which may be the same for both.
    const embedding = (await embeddingFile.readRange(EMBEDDING_NAME, start, end)).slice();
    const head = await headFile.readRange(HEAD_NAME, start, end);
    if (!embedding.every((value, i) => value === head[i])) return false;
  }
  return true;
}
