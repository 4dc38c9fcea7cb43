// The functions that create masks, exported as `masks`.
export { and, fromDense, maskArea, or } from "./combine.ts";
export {
  type CuSeqlensOptions,
  type DocumentMask,
  documents,
  fromCuSeqlens,
  shareQuestion,
} from "./documents.ts";
export {
  bidirectionalCausal,
  blockCausal,
  causal,
  fromSlices,
  full,
  globalTokens,
  type GlobalTokensOptions,
  inverseCausal,
  prefix,
  slidingWindow,
  type SlidingWindowOptions,
} from "./masks.ts";
