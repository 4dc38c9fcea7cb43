/** The default port of torchrun. */
export const DEFAULT_RDZV_PORT = 29_400;
export const MAX_NODES = 4096;

/** How many nodes a job may have. */
export interface NodeRange {
  readonly min: number;
  readonly max: number;
}

/** Parses `N` or `MIN:MAX`; returns undefined for any other text. */
export function parseNodeRange(text: string): NodeRange | undefined {
  const match = /^([1-9]\d{0,3})(?::([1-9]\d{0,3}))?$/.exec(text);
  if (match === null) return undefined;
  const [min, max] = [Number(match[1]), Number(match[2] ?? match[1])];
  return min <= max && max <= MAX_NODES ? { min, max } : undefined;
}

/** Parses `host`, `host:port` or `[v6]:port`; returns undefined for any other text. */
export function parseEndpoint(text: string): { readonly host: string; readonly port: number | undefined } | undefined {
  const match = /^(\[[^\]]*\]|[^:]*)(?::(\d+))?$/.exec(text);
  if (match === null) return undefined;
  return {
    host: (match[1] as string).replace(/^\[|\]$/g, ""),
    port: match[2] === undefined ? undefined : Number(match[2]),
  };
}
