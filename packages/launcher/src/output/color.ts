/** Values of `--color`. */
export const COLOR_SETTINGS = ["auto", "always", "never"] as const;
export type ColorSetting = (typeof COLOR_SETTINGS)[number];

/** Returns whether standard output is colored. As in https://no-color.org, any non-empty NO_COLOR disables colors. */
export function isColorEnabled(setting: ColorSetting): boolean {
  if (setting !== "auto") return setting === "always";
  return process.stdout.isTTY && !process.env.NO_COLOR;
}
