/** One thing to check. Any runner can run it: `test(name, run)`. It rejects with an AssertionError when it does not hold. */
export interface Case {
  readonly name: string;
  run(): Promise<void>;
}
