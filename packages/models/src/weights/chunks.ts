/** Elements of a file that are on the host at a time, 2 MiB of float32, beside the model itself. */
export const CHUNK_ELEMENTS = 2 ** 19;
