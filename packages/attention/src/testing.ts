// The conformance suites for devices, collectives and backends, and the float64 reference.
export * from "@mosaic/conformance";
