import { enableGrad, isGradEnabled, noGrad } from "@mosaic/core";

/** Runs what follows a wait with recording as it was before. */
export type Resume = <T>(body: () => T) => T;

/** Whether operations are recorded is a property of the moment: other code runs while one waits. Call it before. */
export function resumeRecording(): Resume {
  return isGradEnabled() ? enableGrad : noGrad;
}
