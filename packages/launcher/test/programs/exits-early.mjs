// The rank given by the first argument exits with 0, after the milliseconds given by the third. All other ranks join a
// world of the control plane: the job's world, or a world without that rank whose name is the second argument. They
// print the result.
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { decode, encode, FrameReader, MAGIC, PROTOCOL_VERSION, ROLES } from "../../dist/agent/index.js";

const { MOSAIC_AGENT, MOSAIC_ATTEMPT, MOSAIC_RUN_ID, MOSAIC_TOKEN_FILE, RANK, WORLD_SIZE } = process.env;
const [exitingRank, name, delayMs = "0"] = process.argv.slice(2);
if (RANK === exitingRank) setTimeout(() => process.exit(0), Number(delayMs));
else join();

function join() {
  const secret = readFileSync(MOSAIC_TOKEN_FILE, "utf8").trim();
  const protocol = { magic: MAGIC, version: PROTOCOL_VERSION, secret, role: ROLES.rank };
  const isOwnWorld = name !== "job";
  const [rank, size] = isOwnWorld
    ? [Number(RANK) - (RANK > exitingRank ? 1 : 0), WORLD_SIZE - 1]
    : [Number(RANK), Number(WORLD_SIZE)];
  const world = { world: 0, name: isOwnWorld ? name : `${MOSAIC_RUN_ID}/local`, attempt: Number(MOSAIC_ATTEMPT), size };
  const members = [{ rank, pid: process.pid, host: 0 }];
  const socket = connect({ path: MOSAIC_AGENT });
  const reader = new FrameReader();
  socket.write(encode({ kind: "hello", ...protocol, agent: 0, host: "", address: "" }));
  const waitMs = isOwnWorld ? 1000 : 0;
  setTimeout(() => {
    socket.write(encode({ kind: "join", ...world, timeoutMs: 30_000, remainingMs: 30_000, hosts: [], members }));
  }, waitMs);
  socket.on("data", (chunk) => {
    reader.push(chunk);
    reader.limit = 1e6;
    for (let content = reader.next(); content !== undefined; content = reader.next()) deliver(socket, decode(content));
  });
}

function deliver(socket, frame) {
  if (frame.kind === "memberTable") {
    console.log(`complete: ${frame.members.length}`);
    process.exit(0);
  }
  if (frame.kind !== "refused") return;
  console.log(`refused: ${frame.code} ${frame.message}`);
  const error = new Error(frame.message);
  error.name = "PeerLostError";
  throw error;
}
