/** The launcher was called with something it cannot do: wrong option, missing entry, launchers that disagree. Exit code 2. */
export class UsageError extends Error {
  override readonly name: string = "UsageError";
  readonly exitCode: number = 2;
  /** Where the documentation has causes and remedies. */
  readonly help: string = "docs/troubleshooting.md#usageerror";
}

/** The job could not come together: the port is taken, nodes are missing or lost. Exit code 75, which schedulers read as "try again". */
export class RendezvousError extends Error {
  override readonly name: string = "RendezvousError";
  readonly exitCode: number = 75;
  /** Where the documentation has causes and remedies. */
  readonly help: string = "docs/troubleshooting.md#rendezvouserror";
}
