import type { Check } from "../finding.ts";
import { choice } from "./choice.ts";
import { driver } from "./driver.ts";
import { gpus } from "./gpus.ts";
import { job } from "./job.ts";
import { limits } from "./limits.ts";
import { links } from "./links.ts";
import { memory } from "./memory.ts";
import { nccl } from "./nccl.ts";
import { network } from "./network.ts";
import { node } from "./node.ts";
import { os } from "./os.ts";
import { packages } from "./packages.ts";
import { processor } from "./processor.ts";
import { settings } from "./settings.ts";
import { sharedMemory } from "./shared-memory.ts";

/** In the order in which a reader asks. */
export const checks: readonly Check[] = [
  ...[node, os, processor, memory, sharedMemory, limits],
  ...[packages, driver, gpus, links, nccl, network],
  ...[job, settings, choice],
];
