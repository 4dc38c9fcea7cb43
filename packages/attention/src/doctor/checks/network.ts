import { type Check, note, ok } from "../finding.ts";
import { rdmaPorts } from "../rdma.ts";

export const network: Check = {
  name: "network",
  run(system) {
    const { interfaces } = system;
    const ports = rdmaPorts(system);
    const [up, down] = [ports.filter(({ isActive }) => isActive), ports.filter(({ isActive }) => !isActive)];
    const listed = interfaces.length > 0 ? interfaces.join(", ") : "no interface but the loopback";
    return [
      ok(listed),
      ...(up.length > 0 ? [ok(`RDMA: ${up.map(({ name, speed }) => `${name} (${speed})`).join("; ")}`)] : []),
      ...down.map(({ name, speed }) =>
        note(`RDMA port ${name} is not active (${speed})`, "check its cable and subnet manager"),
      ),
    ];
  },
};
