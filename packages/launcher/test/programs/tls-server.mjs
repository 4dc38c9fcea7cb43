// A TLS server in a process of its own: prints its address, then, for each line on stdin, its handshakes under way, its memory in
// MB and how many connections it has accepted. Refusals go to stderr.
import { createInterface } from "node:readline";
import { TLS_PROTOCOLS, TlsServer } from "../../dist/agent/index.js";

let numAccepted = 0;
const server = await TlsServer.listen({
  secret: process.env.TEST_SECRET,
  onRefused: (address, reason) => process.stderr.write(`${address}: ${reason}\n`),
});
server.serve(TLS_PROTOCOLS.agent, (socket) => {
  numAccepted++;
  socket.pipe(socket);
});
console.log(server.address);
createInterface({ input: process.stdin })
  .on("line", () => {
    globalThis.gc();
    console.log(`${server.handshakes} ${Math.round(process.memoryUsage().rss / 2 ** 20)} ${numAccepted}`);
  })
  .on("close", () => process.exit());
