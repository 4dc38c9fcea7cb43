// Replaces peers/sdpa.py in tests of the benchmark itself. It answers the protocol with fixed numbers and computes
// nothing, so PyTorch is not tested.
import { createInterface } from "node:readline";

const [mode = "works"] = process.argv.slice(2);
const errors = { out: 1e-3, dq: 1e-3, dk: 1e-3, dv: 1e-3 };

const answers = {
  hello: () => ({ torch: "none: a stand-in" }),
  check: ({ backend }) => (backend === "efficient" ? { ...errors, dv: 0.5 } : errors),
  prepare: () => ({ seconds: [1e-3] }),
  sample: ({ count }) => ({ seconds: Array.from({ length: count }, () => 1e-3) }),
  operation: ({ count }) => ({ seconds: Array.from({ length: count }, () => 1e-3) }),
  release: () => ({}),
};

console.log("a library's greeting, which is no answer");
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  if (request.op === "quit") break;
  if (mode === "dies") process.exit(3);
  if (mode === "hangs") continue;
  const refusal = { error: "no such backend here" };
  console.log(JSON.stringify(request.backend === "cudnn" ? refusal : answers[request.op](request)));
}
