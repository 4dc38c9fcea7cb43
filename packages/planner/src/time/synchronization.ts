/** Synchronization of compute streams with collectives. It is not compute, and predicted timelines do not have it. */
export const synchronizationEventNames: ReadonlySet<string> = new Set(["collective ready", "collective wait"]);
