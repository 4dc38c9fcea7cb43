export { attendLocally, attendOn, type AttentionNumbers } from "./backend/attend.ts";
export { type ErrorSum, errorSum, type Extent, extentOf, joined } from "./measure/errors.ts";
export { checkMeasurements, type Measured, type Measurement } from "./measure/gate.ts";
export { agreementSuite, type AgreementSuiteOptions } from "./backend/agreement.ts";
export { inSteps } from "./backend/in-steps.ts";
export { maskTrials, type MaskTrial } from "./backend/masks.ts";
export { measureOn } from "./backend/measure.ts";
export { placements } from "./backend/placements.ts";
export { alongOneAxis, backendSuite, type BackendSuiteOptions } from "./backend/suite.ts";
export { validationSuite, type ValidationSuiteOptions } from "./backend/validation.ts";
export { answerOf, type Answer, type Trial } from "./backend/trial.ts";
export {
  type Arrangement,
  backendTrials,
  type Extents,
  formatMesh,
  ranksOf,
  type TrialOptions,
} from "./backend/trials.ts";
export type { Case } from "./case.ts";
export { check, checkClose, checkEqual, checkThrows, magnitude, maxError } from "./check.ts";
export { disturbed, type DisturbedContext } from "./disturb/context.ts";
export { poisoned } from "./disturb/device.ts";
export { type Arrival, DisturbedGroup, type Disturbance } from "./disturb/group.ts";
export {
  attentionOracle,
  attentionOracleBackward,
  type AttentionProblem,
  type OracleBackward,
  type OracleForward,
  type Sees,
} from "./oracle/attention.ts";
export { randomSlices, sees, seesAny } from "./oracle/mask.ts";
export { epsilon, integer, normals, rounded, roundedAll, uniforms } from "./oracle/numbers.ts";
export { type MakeWorld, onWorld, type WorldOptions } from "./world.ts";
export { type DeviceSuiteOptions, deviceSuite } from "./device/suite.ts";
export type { MakeDevice } from "./device/on-device.ts";
export { type Job, RankProcesses, type RankProgram } from "./process/processes.ts";
export { type Timeouts, type ScenarioIo, runRank, type RunRankOptions, type Scenario } from "./process/run-rank.ts";
export { type RankProcess, type RankEvent, startRank } from "./process/rank.ts";
export { processSuite, type ProcessSuiteOptions } from "./process/suite.ts";
export { failureSuite, type FailureSuiteOptions } from "./failures/suite.ts";
export { collectivesSuite, type CollectivesSuiteOptions } from "./collectives/suite.ts";
export {
  moduleOracle,
  type ModuleAnswer,
  type ModuleParameters,
  type ModuleProblem,
  type ModuleSizes,
} from "./modules/oracle.ts";
export { moduleSuite, type ModuleSuiteOptions } from "./modules/suite.ts";
export { measureModuleOn, type OneDevice, onOneDevice } from "./modules/measure.ts";
export type { ModuleTrial } from "./modules/trial.ts";
export { moduleTrials } from "./modules/trials.ts";
export { leakCase, type LeakOptions } from "./modules/leak.ts";
