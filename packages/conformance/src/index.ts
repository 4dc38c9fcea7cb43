export {
  runLocalAttention,
  runBackendOnRank,
  type AttentionNumbers,
} from "./backend/attend.ts";
export { agreementSuite, type AgreementSuiteOptions } from "./backend/agreement.ts";
export {
  checkMeasurements,
  checkTrials,
  type ErrorSum,
  computeErrorSum,
  type ValueMagnitude,
  measureMagnitude,
  mergeErrorSums,
  type ResultMeasurement,
  type Measurement,
} from "./measure/gate.ts";
export { type BatchSuiteOptions, batchSuite, batchTrials } from "./backend/batch.ts";
export { addTraffic, measureTraffic } from "./measure/traffic.ts";
export { broadcastSteps } from "./backend/broadcast-steps.ts";
export { maskKinds, maskKindsLength } from "./backend/mask-kinds.ts";
export { maskTrials, type MaskTrial } from "./backend/masks.ts";
export { measureArrangement, measureBackend } from "./backend/measure.ts";
export { type Arrangement, arrangementOptions } from "./suite-options.ts";
export {
  backendTrials,
  type Extents,
  formatMesh,
  placements,
  meshSize,
  type TrialOptions,
} from "./backend/trials.ts";
export { alongOneAxis, backendSuite, type BackendSuiteOptions } from "./backend/suite.ts";
export { validationSuite, type ValidationSuiteOptions } from "./backend/validation.ts";
export { type Reference, getReference, type Trial } from "./backend/trial.ts";
export { type Case, check, checkClose, checkEqual, checkThrows, magnitude, maxError } from "./check.ts";
export {
  type CompletionTime,
  type Perturbation,
  perturbContext,
  type PerturbedContext,
  PerturbedGroup,
  poisonMemory,
} from "./perturb/group.ts";
export {
  attentionOracle,
  attentionOracleBackward,
  type AttentionProblem,
  type OracleBackward,
  type OracleForward,
  randomSlices,
  type MaskMod,
  isPairVisible,
  slicesToMaskMod,
} from "./oracle/attention.ts";
export { type Combination, type Factors, pairwise } from "./pairwise.ts";
export { epsilon, integer, normals, roundTo, uniforms } from "./oracle/numbers.ts";
export { type OracleModifiers, philox } from "./oracle/score-modifiers.ts";
export { variantSuite, type VariantSuiteOptions } from "./backend/variants.ts";
export { type MakeWorld, runOnWorld, type WorldOptions } from "./world.ts";
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
  measureModule,
  type SingleDeviceResult,
  runOnOneDevice,
} from "./modules/measure.ts";
export { type ModuleTrial, moduleTrials } from "./modules/trial.ts";
export { leakCase, type LeakOptions } from "./modules/leak.ts";
