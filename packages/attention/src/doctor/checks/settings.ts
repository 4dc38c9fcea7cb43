import { type Check, ok } from "../finding.ts";

/** What the environment asks for. */
export const settings: Check = {
  name: "settings",
  run({ env }) {
    const set = Object.entries(env)
      .filter(([name]) => /^(MOSAIC|NCCL)_/.test(name) && !/TOKEN|STORE/.test(name))
      .map(([name, value]) => `${name}=${value}`)
      .sort();
    return set.length > 0 ? [ok(set.join(" "))] : [];
  },
};
