import type { PlanProgress } from "../plan/job.ts";
import { note } from "./output.ts";

/** Says on a terminal how far the planning is, in one line; elsewhere only when a stage begins. */
export function progressOn({ isTTY }: NodeJS.WriteStream): { show(progress: PlanProgress): void; end(): void } {
  const words = { sketch: "sketching", simulate: "simulating" } as const;
  let stage: PlanProgress["stage"] | undefined;
  return {
    show(progress) {
      const { done, of } = progress;
      if (isTTY) note(`\r\u001b[K${words[progress.stage]} ${done + 1} of ${of}`);
      else if (stage !== progress.stage) note(`mosaic-plan: ${words[progress.stage]} ${of}\n`);
      ({ stage } = progress);
    },
    end() {
      if (isTTY) note("\r\u001b[K");
    },
  };
}
