// A rank of a correct program with the fault that its argument names.
import { readdirSync, readFileSync, readlinkSync, writeSync } from "node:fs";

const fault = process.argv[2];
const isCulprit = process.env.RANK === "1";

/**
 * Prints the start time of the fault and the resources in use. Writes synchronously, so that nothing is lost when the
 * process dies.
 */
function reportFault() {
  writeSync(1, `${JSON.stringify({ at: Date.now(), sockets: listSockets(), segments: listSegments() })}\n`);
}

function listSockets() {
  return readdirSync("/proc/self/fd").flatMap((fd) => {
    try {
      return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/self/fd/${fd}`))?.[1] ?? [];
    } catch {
      return []; // the descriptor that listed the directory
    }
  });
}

function listSegments() {
  const lines = readFileSync("/proc/self/maps", "utf8").split("\n");
  return [...new Set(lines.filter((line) => line.includes("memfd:mosaic")).map((line) => line.split(/\s+/)[4]))];
}

if (fault === "addon missing") reportFault();
const mosaic = await import("@mosaic/attention");

const options = {
  "wrong option": { spsize: 2 },
  "late beyond the deadline": { timeout: 1 },
  "different seeds": { seed: isCulprit ? 1 : 0 },
  "different meshes": { mesh: isCulprit ? { dp: 3, sp: 1 } : { sp: 3 } },
};
if (["wrong option", "different seeds", "different meshes"].includes(fault)) reportFault();
const ctx = await mosaic.init(options[fault] ?? {});

if (fault === "unknown backend") reportFault();
const backend = fault === "unknown backend" ? "star" : "ring";
const attn = new mosaic.MultiAxisAttention(ctx, { embedDim: 16, numHeads: 2, attentionAxis: 1, backend });

async function step(rows) {
  const x = mosaic.randn(ctx, [1, rows, 16]);
  const out = attn.forward(x);
  await out.read();
  for (const tensor of [x, out]) tensor.dispose();
}

const faultActions = {
  throws() {
    throw new Error("a seeded fault");
  },
  "is killed": () => process.kill(process.pid, "SIGKILL"),
  "exits early": () => process.exit(0),
  "mismatched shapes": () => step(31),
  async "mismatched call order"() {
    const x = mosaic.ones(ctx, [4]);
    ctx.world.barrier().wait();
    ctx.world.allReduce(x).wait();
    await x.read();
  },
  "late beyond the deadline": () => new Promise((resolve) => setTimeout(resolve, 60_000)),
};

for (let i = 0; i < 3; i++) await step(32);
reportFault();
if (isCulprit) await faultActions[fault]?.();
if (fault === "mismatched call order") {
  const x = mosaic.ones(ctx, [4]);
  ctx.world.allReduce(x).wait();
  ctx.world.barrier().wait();
  await x.read();
}
for (;;) await step(32);
