// Runs one proof in its own process: node proof-run.js STRATEGY MASK [RANKS]
import { dispatch } from "@mosaic/backend-flex";
import { contiguous, type Mask, masks, type Placement, zigzag } from "@mosaic/core";
import { count, prove, record } from "@mosaic/planner";
import { HEAD_DIM, HEADS, KV_HEADS, type ProofMask, type ProofCosts, proofProblems, TOKENS } from "./proof.ts";

const [strategy, mask, ranks] = process.argv.slice(2);
const { mesh: fullMesh, backend } = proofProblems[strategy!]!;
const mesh = ranks === undefined ? fullMesh : { sp: Number(ranks) };
const sizes = { tokens: TOKENS, numHeads: HEADS, numKvHeads: KV_HEADS, headDim: HEAD_DIM };
const maskAndPlacement = createMaskAndPlacement(mask as ProofMask);

const [attentionRecord, recordSeconds] = timeCpu(() =>
  record({ backend: backend(), mesh, ...sizes, ...maskAndPlacement }),
);
const [{ total: violations }, proveSeconds] = timeCpu(() => prove(attentionRecord));
const [, countSeconds] = timeCpu(() => count(attentionRecord));
const gigabytes = process.resourceUsage().maxRSS / 2 ** 20;
const times: ProofCosts = { record: recordSeconds, prove: proveSeconds, count: countSeconds, gigabytes, violations };
console.log(JSON.stringify(times));

function createMaskAndPlacement(name: ProofMask): { readonly mask: Mask; readonly placement: Placement } {
  switch (name) {
    case "full":
      return { mask: masks.full(), placement: contiguous() };
    case "causal":
      return { mask: masks.causal(), placement: zigzag() };
    case "window":
      return { mask: masks.slidingWindow(4096), placement: contiguous() };
    default: {
      const documents = masks.documents(documentLengths(), "causal");
      const chunkSize = 512;
      return {
        mask: documents,
        placement: dispatch({ mask: documents, length: TOKENS, ranks: mesh["sp"]!, chunkSize }),
      };
    }
  }
}

/** Returns document lengths of 64 to 16 448 tokens: many short and few long ones, the same on every run. */
function documentLengths(): number[] {
  const lengths: number[] = [];
  let [remaining, state] = [TOKENS, 12_345];
  while (remaining > 0) {
    state = (state * 1_103_515_245 + 12_345) % 2 ** 31;
    const length = Math.min(remaining, 64 + Math.floor(16_384 * (state / 2 ** 31) ** 3));
    lengths.push(length);
    remaining -= length;
  }
  return lengths;
}

/** Returns the result, and the CPU seconds of all threads of this process. */
function timeCpu<T>(body: () => T): readonly [T, number] {
  const cpuUsageBefore = process.cpuUsage();
  const result = body();
  const { user, system } = process.cpuUsage(cpuUsageBefore);
  return [result, (user + system) / 1e6];
}
