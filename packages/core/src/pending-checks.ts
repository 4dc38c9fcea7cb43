import type { Device } from "./device.ts";

// Checks of values that are on a device. They are posted without waiting, so their errors are asynchronous, as those of
// the device itself: the next `read` of a tensor of the device rejects with the error, or otherwise `close`.

interface DeviceChecks {
  /** Settles when all posted checks have completed. Never rejects. */
  completed: Promise<void>;
  numPending: number;
  /** Errors that were not reported yet, in the order of their checks. */
  readonly errors: Error[];
}

const checksByDevice = new WeakMap<Device, DeviceChecks>();

/**
 * Adds a check whose values were requested from the device. It resolves to an error, or to undefined if the values are
 * correct. A rejection is ignored, because it is a failure of the device or of a rank, which is reported elsewhere.
 */
export function addPendingCheck(device: Device, check: Promise<Error | undefined>): void {
  const checks = checksByDevice.get(device) ?? { completed: Promise.resolve(), numPending: 0, errors: [] };
  checksByDevice.set(device, checks);
  checks.numPending++;
  const result = check.catch(() => undefined);
  checks.completed = Promise.all([result, checks.completed]).then(([error]) => {
    if (error) checks.errors.push(error);
    checks.numPending--;
    if (checks.numPending === 0 && checks.errors.length === 0) checksByDevice.delete(device);
  });
}

/**
 * Returns the result of a read of the device, or rejects if a check that was posted before failed. Its values were
 * requested before, so that this waits no longer than the read itself.
 */
export function readAfterChecks<T>(device: Device, values: Promise<T>): Promise<T> {
  const checks = checksByDevice.get(device);
  if (!checks) return values;
  values.catch(() => {}); // reported only if all checks succeed
  return checks.completed.then(() => {
    throwFailedCheck(device);
    return values;
  });
}

/** Waits for all checks of the device. Rejects with the error of a check that was not reported before. */
export async function completeChecks(device: Device): Promise<void> {
  await checksByDevice.get(device)?.completed;
  throwFailedCheck(device);
}

/** Throws the error of the first completed check that failed and was not reported before. */
export function throwFailedCheck(device: Device): void {
  const checks = checksByDevice.get(device);
  const error = checks?.errors.shift();
  if (!checks || !error) return;
  if (checks.numPending === 0 && checks.errors.length === 0) checksByDevice.delete(device);
  throw error;
}
