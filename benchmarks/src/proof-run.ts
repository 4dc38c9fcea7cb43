// One proof, in a process of its own: node proof-run.js STRATEGY full|causal
import { contiguous, masks, zigzag } from "@mosaic/core";
import { count, prove, record } from "@mosaic/planner";
import { HEAD_DIM, HEADS, KV_HEADS, type ProofTimes, proofs, TOKENS } from "./proof.ts";

const [strategy, mask] = process.argv.slice(2);
const { mesh, backend } = proofs[strategy!]!;
const sizes = { tokens: TOKENS, numHeads: HEADS, numKvHeads: KV_HEADS, headDim: HEAD_DIM };
const arrangement =
  mask === "causal" ? { mask: masks.causal(), placement: zigzag() } : { mask: masks.full(), placement: contiguous() };

const [run, recordSeconds] = timed(() => record({ backend: backend(), mesh, ...sizes, ...arrangement }));
const [{ total: violations }, proveSeconds] = timed(() => prove(run));
const [, countSeconds] = timed(() => count(run));
const gigabytes = process.resourceUsage().maxRSS / 2 ** 20;
const times: ProofTimes = { record: recordSeconds, prove: proveSeconds, count: countSeconds, gigabytes, violations };
console.log(JSON.stringify(times));

/** What it gives, and the seconds that all threads of this process computed. */
function timed<T>(body: () => T): readonly [T, number] {
  const before = process.cpuUsage();
  const result = body();
  const { user, system } = process.cpuUsage(before);
  return [result, (user + system) / 1e6];
}
