/** The command line cannot be understood; the message says what would be. */
export class UsageError extends Error {
  override readonly name: string = "UsageError";
}
