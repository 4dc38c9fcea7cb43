// The suites that any device, collectives or backend must pass, and the float64 oracle.
export * from "@mosaic/conformance";
