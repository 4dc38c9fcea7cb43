/** The launcher was called with something it cannot do: wrong option, missing entry, several nodes. Exit code 2. */
export class UsageError extends Error {
  override readonly name: string = "UsageError";
  readonly exitCode: number = 2;
}

/** The job could not come together: the store's port is taken. Exit code 75, which schedulers read as "try again". */
export class RendezvousError extends Error {
  override readonly name: string = "RendezvousError";
  readonly exitCode: number = 75;
}
