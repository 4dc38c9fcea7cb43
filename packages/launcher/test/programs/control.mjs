// A rank that joins the control plane and prints the member table. In attempt 0, rank 1 fails after it has joined, and
// the other ranks wait until the control plane has reported the loss.
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { decode, encode, FrameReader, MAGIC, PROTOCOL_VERSION, ROLES } from "../../dist/agent/index.js";

const { MOSAIC_AGENT, MOSAIC_ATTEMPT, MOSAIC_RUN_ID, MOSAIC_TOKEN_FILE, RANK, WORLD_SIZE } = process.env;
const secret = readFileSync(MOSAIC_TOKEN_FILE, "utf8").trim();
const identity = { magic: MAGIC, version: PROTOCOL_VERSION, secret, role: ROLES.rank, agent: 0, host: "", address: "" };
const world = { world: 0, name: MOSAIC_RUN_ID, attempt: Number(MOSAIC_ATTEMPT), size: Number(WORLD_SIZE) };
const members = [{ rank: Number(RANK), pid: process.pid, host: 0 }];

const socket = connect({ path: MOSAIC_AGENT });
const reader = new FrameReader();
socket.write(encode({ kind: "hello", ...identity }));
socket.write(encode({ kind: "join", ...world, timeoutMs: 20_000, remainingMs: 20_000, hosts: [], members }));
socket.on("data", (chunk) => {
  reader.push(chunk);
  reader.limit = 1e6;
  for (let content = reader.next(); content !== undefined; content = reader.next()) deliver(decode(content));
});

// In attempt 0 the launcher kills the other ranks only after the grace period.
process.on("SIGTERM", () => {});

function deliver(frame) {
  if (frame.kind === "lost") {
    console.log(`lost ${JSON.stringify(frame.losses[0].ranks)}`);
    process.exit(0);
  }
  if (frame.kind !== "memberTable") return;
  console.log(
    `attempt ${MOSAIC_ATTEMPT}: ${frame.members.map(({ pid }) => pid === process.pid).join()} on ${frame.hosts}`,
  );
  if (MOSAIC_ATTEMPT === "0" && RANK === "1") process.exit(3);
  if (MOSAIC_ATTEMPT === "1") socket.end();
}
