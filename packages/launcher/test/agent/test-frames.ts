import { readFileSync } from "node:fs";

/** A frame of docs/control-plane.md. */
export interface TestFrame {
  /** Fields of the frame. 64-bit numbers are strings, values are in hex. */
  readonly json: Record<string, unknown> & { readonly kind: string };
  readonly bytes: Buffer;
}

/** Parses the ```frame blocks of docs/control-plane.md: a line of JSON, then bytes in hex. */
export function testFrames(): readonly TestFrame[] {
  const document = readFileSync(new URL("../../../../docs/control-plane.md", import.meta.url), "utf8");
  return [...document.matchAll(/^```frame\n(.*)\n([0-9a-f \n]+)\n```$/gm)].map(([, json = "", hex = ""]) => ({
    json: JSON.parse(json),
    bytes: Buffer.from(hex.replace(/\s/g, ""), "hex"),
  }));
}
