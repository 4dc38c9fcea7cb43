// One probe in a process of its own: `node doctor-probe.js <name>` answers as JSON on file descriptor 3, away from
// whatever native code may print.
import { writeSync } from "node:fs";
import type { MosaicError } from "@mosaic/core";
import { probes } from "./probes.ts";
import type { Answer } from "./system.ts";

const probe = probes[process.argv[2] as keyof typeof probes];
writeSync(3, JSON.stringify(await answer(probe)));
// A driver that holds on to its threads must not hold on to us.
process.exit();

async function answer(run: () => Promise<unknown>): Promise<Answer<unknown>> {
  try {
    return { value: await run() };
  } catch (error) {
    const { name, message, parts } = error as Error & Partial<MosaicError>;
    const remedy = parts?.remedy;
    if (remedy === undefined) return { error: { name, message } };
    return { error: { name, message: message.replace(`; ${remedy}`, ""), remedy } };
  }
}
