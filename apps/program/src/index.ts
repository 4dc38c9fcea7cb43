export { LearningCurve, type LogLine, readLearningCurve } from "./learning-curve.ts";
export * from "./plot.ts";
export { Progress } from "./progress.ts";
export { type RankLaunchOptions, type RankProgram, startRanks, throwIfFailed, TrainingError } from "./ranks.ts";
export { Random } from "./random.ts";
