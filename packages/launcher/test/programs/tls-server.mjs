// A TLS server in a separate process. Prints its address, then, for each line on stdin, the number of running
// handshakes, its memory in MB and the number of accepted connections. Refusals are written to stderr.
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
