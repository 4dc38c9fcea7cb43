/**
 * Error of a job that cannot run as requested: a wrong option, a missing entry, or launchers with different options.
 * Exit code 2.
 */
export class UsageError extends Error {
  override readonly name: string = "UsageError";
  readonly exitCode: number = 2;
  /** Path, in the folder of the project, and anchor of the documentation with causes and remedies. */
  readonly help: string = "node_modules/@mosaic/launcher/dist/troubleshooting.md#usageerror";
}

/**
 * Error of a rendezvous: the port is in use, or nodes are missing or lost. Exit code 75 (EX_TEMPFAIL): schedulers may
 * retry the job.
 */
export class RendezvousError extends Error {
  override readonly name: string = "RendezvousError";
  readonly exitCode: number = 75;
  /** Path, in the folder of the project, and anchor of the documentation with causes and remedies. */
  readonly help: string = "node_modules/@mosaic/launcher/dist/troubleshooting.md#rendezvouserror";
}
