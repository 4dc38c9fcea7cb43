import { OptionError } from "@mosaic/attention/core";
import { auto, type AutoStrategy } from "@mosaic/attention/planner";
import { maskFor, placementFor } from "./layout.ts";
import type { Settings } from "./settings.ts";

const choices = new WeakMap<Settings, AutoStrategy>();

/** What the planner chooses for these settings, whose profile it needs; it thinks once. Every rank comes to the same. */
export function choiceFor(settings: Settings): AutoStrategy {
  const { tokens, numHeads, dim, dtype, ranks, profile } = settings;
  if (!profile) throw new OptionError({ where: "auto", expected: "a machine that was measured", received: "none" });
  let choice = choices.get(settings);
  if (!choice) {
    const shape = { tokens, numHeads, headDim: dim, dtype, mask: maskFor(settings), placement: placementFor(settings) };
    choice = auto({ ...shape, gpusPerNode: ranks, profile, simulate: 3 });
    choices.set(settings, choice);
  }
  return choice;
}
