import { mkdtempSync, readdirSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";

/** Creates a directory for one test. */
export function directory(): string {
  const path = mkdtempSync(join(tmpdir(), "mosaic-nn-"));
  onTestFinished(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** Returns whether this process has a file or a directory open. */
export const isOpen = (path: string): boolean =>
  readdirSync("/proc/self/fd").some((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`) === path;
    } catch {
      return false; // the descriptor of this listing
    }
  });

/** Builds a safetensors file by its specification: the length of the header, the header, the data. */
export function file(header: object | string, data: Uint8Array = new Uint8Array(), length?: number): Uint8Array {
  const text = new TextEncoder().encode(typeof header === "string" ? header : JSON.stringify(header));
  const bytes = new Uint8Array(8 + text.length + data.length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length ?? text.length), true);
  bytes.set(text, 8);
  bytes.set(data, 8 + text.length);
  return bytes;
}
