export {
  abortOnSignals,
  parseChoice,
  parseFlags,
  runCommand,
  runProgram,
  toOptionName,
  UsageError,
  withTemporaryDirectory,
} from "./command-line.ts";
export { LearningCurve, type LogLine, readLearningCurve } from "./learning-curve.ts";
export * from "./plot.ts";
export { Progress } from "./progress.ts";
export { Random } from "./random.ts";
export { type RankLaunchOptions, type RankProgram, RanksFailedError, launchRanks, throwIfFailed } from "./ranks.ts";
