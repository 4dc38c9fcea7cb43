/** Longer than threads of an idle OpenMP or of ours wait for more work before they sleep. */
const MILLISECONDS = 250;

/** Leaves the cores to whoever is measured next. */
export function rest(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, MILLISECONDS));
}
