import { type Check, ok } from "../finding.ts";

export const os: Check = {
  name: "system",
  run({ read, release, exists }) {
    const name = /^PRETTY_NAME="?(.*?)"?$/m.exec(read("/etc/os-release") ?? "")?.[1] ?? "unknown distribution";
    const inside = ["/.dockerenv", "/run/.containerenv", "/singularity"].some(exists) ? ", in a container" : "";
    return [ok(`${name}, Linux ${release}${inside}`)];
  },
};
