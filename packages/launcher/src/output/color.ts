/** What `--color` may be. */
export const COLOR_SETTINGS = ["auto", "always", "never"] as const;
export type ColorSetting = (typeof COLOR_SETTINGS)[number];

/** Whether standard output is coloured. https://no-color.org: any value but the empty one turns colours off. */
export function isColorEnabled(setting: ColorSetting): boolean {
  if (setting !== "auto") return setting === "always";
  return process.stdout.isTTY && !process.env.NO_COLOR;
}
