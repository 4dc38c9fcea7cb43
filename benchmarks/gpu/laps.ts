import type { Device } from "@mosaic/core";

/** One step on the device's clock. */
export interface Lap {
  readonly seconds: number;
  /** Seconds of each kernel, by name. What is not in them are launches, and waiting for the host if it was late. */
  readonly kernels: Readonly<Record<string, number>>;
}

/**
 * Times steps that enqueue work, by events in the stream: each lap is from one mark to the next. The host is not in it as
 * long as the device has work waiting, so let the first step be one that does not count, and long enough.
 */
export async function lapsOf(device: Device, steps: readonly (() => void)[]): Promise<readonly Lap[]> {
  using mark = device.empty([1], "float32");
  // Attention draws no random numbers: this kernel is nobody else's.
  const setMark = (): void => device.kernels.random(mark, { kind: "uniform", low: 0, high: 1, seed: 0, stream: 0 });
  device.startTrace();
  setMark();
  for (const step of steps) {
    step();
    setMark();
  }
  const events = await device.stopTrace();
  const marks = events.flatMap(({ name }, i) => (name === events[0]!.name ? [i] : []));
  if (marks.length !== steps.length + 1) {
    throw new Error(
      `laps: ${steps.length + 1} marks were set, ${marks.length} found; a step must not draw random numbers`,
    );
  }
  return steps.map((_, i) => {
    const [from, to] = [marks[i]!, marks[i + 1]!];
    const kernels: Record<string, number> = {};
    for (const { name, start, end } of events.slice(from + 1, to)) {
      kernels[name] = (kernels[name] ?? 0) + (end - start) / 1e9;
    }
    return { seconds: (events[to]!.start - events[from]!.end) / 1e9, kernels };
  });
}
