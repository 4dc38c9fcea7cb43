export { attendLocally, attendOn, type AttentionNumbers } from "./backend/attend.ts";
export { agreementSuite, type AgreementSuiteOptions } from "./backend/agreement.ts";
export {
  checkMeasurements,
  type ErrorSum,
  errorSum,
  type Extent,
  extentOf,
  mergeErrorSums,
  type Measured,
  type Measurement,
} from "./measure/gate.ts";
export { type BatchSuiteOptions, batchSuite, batchTrials } from "./backend/batch.ts";
export { inSteps } from "./backend/in-steps.ts";
export { maskTrials, type MaskTrial } from "./backend/masks.ts";
export { measureOn } from "./backend/measure.ts";
export {
  type Arrangement,
  backendTrials,
  type Extents,
  formatMesh,
  placements,
  ranksOf,
  type TrialOptions,
} from "./backend/trials.ts";
export { alongOneAxis, backendSuite, type BackendSuiteOptions } from "./backend/suite.ts";
export { validationSuite, type ValidationSuiteOptions } from "./backend/validation.ts";
export { type Reference, referenceOf, type Trial } from "./backend/trial.ts";
export { type Case, check, checkClose, checkEqual, checkThrows, magnitude, maxError } from "./check.ts";
export {
  type CompletionTime,
  type Disturbance,
  disturbed,
  type DisturbedContext,
  DisturbedGroup,
  poisoned,
} from "./disturb/group.ts";
export {
  attentionOracle,
  attentionOracleBackward,
  type AttentionProblem,
  type OracleBackward,
  type OracleForward,
  randomSlices,
  type MaskMod,
  isPairVisible,
  maskModOf,
} from "./oracle/attention.ts";
export { type Combination, type Factors, pairwise } from "./pairwise.ts";
export { epsilon, integer, normals, roundTo, uniforms } from "./oracle/numbers.ts";
export { type MakeWorld, onWorld, type WorldOptions } from "./world.ts";
export { type DeviceSuiteOptions, deviceSuite } from "./device/suite.ts";
export type { MakeDevice } from "./device/tensors.ts";
export {
  type Job,
  type RankEvent,
  type RankProcess,
  RankProcesses,
  type RankProgram,
  startRank,
} from "./process/processes.ts";
export { type Timeouts, type ScenarioIo, runRank, type RunRankOptions, type Scenario } from "./process/run-rank.ts";
export { processSuite, type ProcessSuiteOptions } from "./process/suite.ts";
export { failureSuite, type FailureSuiteOptions } from "./failures/suite.ts";
export { collectivesSuite, type CollectivesSuiteOptions } from "./collectives/suite.ts";
export {
  moduleOracle,
  type ModuleReference,
  type ModuleParameters,
  type ModuleProblem,
  type ModuleSizes,
} from "./modules/oracle.ts";
export { moduleSuite, type ModuleSuiteOptions } from "./modules/suite.ts";
export {
  measureModuleOn,
  type SingleDeviceResult,
  runOnOneDevice,
} from "./modules/measure.ts";
export { type ModuleTrial, moduleTrials } from "./modules/trial.ts";
export { leakCase, type LeakOptions } from "./modules/leak.ts";
