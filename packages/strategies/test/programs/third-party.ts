import { ring } from "@mosaic/backend-ring";
import type { AttentionBackend } from "@mosaic/core";
import type { CandidateJob } from "../../src/plan/index.ts";

/** The same in TypeScript, without declaring the mesh that it needs. */
export default async function makeBackend({ numHeads }: CandidateJob): Promise<AttentionBackend> {
  return { ...ring({ axis: "circle" }), name: `circle of ${numHeads}` };
}
