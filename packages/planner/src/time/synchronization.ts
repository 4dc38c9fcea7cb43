/** What compute streams do for collectives, which is no computing: predicted timelines have none of it. */
export const synchronizationEventNames: ReadonlySet<string> = new Set(["collective ready", "collective wait"]);
