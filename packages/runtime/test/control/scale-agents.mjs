// Runs some agents of a tree in one process: node scale-agents.mjs '{"prefix":…,"from":0,"to":128,"root":…}'. Agent i
// listens at <prefix>i. Prints the root's address once all listen, and the resources used at the end of its input. Many
// agents share a core here, so an agent counts as lost only after 30 s. MOSAIC_SCALE_NETWORK=tls connects them as on
// several hosts.
import { Agent, tlsNetwork } from "@mosaic/launcher/agent";

const { prefix, from, to, ...options } = JSON.parse(process.argv[2]);
let { root } = options;
const empty = process.memoryUsage.rss();
const agents = [];
// The prefix serves as the secret, which only must be equal in one run.
const network = process.env.MOSAIC_SCALE_NETWORK === "tls" ? { network: tlsNetwork({ secret: prefix }) } : {};
for (let index = from; index < to; index++) {
  const parent = index === 0 ? { children: true } : { index, root };
  agents.push(
    await Agent.listen({
      path: `${prefix}${index}`,
      host: `n${index}`,
      heartbeatTimeoutMs: 30_000,
      ...network,
      ...parent,
    }),
  );
  root ??= agents[0].address;
}
console.log(JSON.stringify({ root }));
let highest = 0;
const samplingTimer = setInterval(() => (highest = Math.max(highest, process.memoryUsage.rss())), 20);
process.stdin.resume().on("end", async () => {
  clearInterval(samplingTimer);
  const { user, system } = process.cpuUsage();
  console.log(JSON.stringify({ agents: agents.length, empty, highest, seconds: (user + system) / 1e6 }));
  for (const agent of agents) await agent.close();
});
