import { type Check, ok, problem } from "../finding.ts";

const OLDEST = [20, 19] as const;

export const node: Check = {
  name: "Node",
  run({ node: { version, platform, glibc } }) {
    const [major = 0, minor = 0] = version.split(".").map(Number);
    const text = `${version}, ${platform}, ${glibc === undefined ? "no glibc" : `glibc ${glibc}`}`;
    if (major < OLDEST[0] || (major === OLDEST[0] && minor < OLDEST[1])) {
      return [problem(text, `install Node ${OLDEST.join(".")} or newer`)];
    }
    if (platform === "linux-x64" && glibc === undefined) {
      return [
        problem(text, "the addons are built for glibc: take an image that has it, not Alpine, or build them there"),
      ];
    }
    return [ok(text)];
  },
};
