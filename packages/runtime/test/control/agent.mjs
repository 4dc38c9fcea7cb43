// An agent in a separate process: node agent.mjs '{"path":…}'. Prints its address for other agents, or "-".
import { Agent } from "@mosaic/launcher/agent";

const agent = await Agent.listen(JSON.parse(process.argv[2]));
console.log(agent.address ?? "-");
