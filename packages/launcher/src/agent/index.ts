/**
 * The control plane's agent: docs/control-plane.md is its protocol. `mosaic-run` runs one for its ranks; where ranks are
 * started by something else, the first rank of a host starts `@mosaic/launcher/agent-process`.
 *
 * @module
 */
export { Agent, type AgentOptions } from "./agent.ts";
export {
  FAILURE_CODES,
  decode,
  encode,
  type Frame,
  FrameReader,
  type FrameOf,
  type Kind,
  MAGIC,
  PROTOCOL_VERSION,
  ROLES,
} from "./frames.ts";
export { HandshakeError, type Listener, type Network, tcpNetwork } from "./network.ts";
export {
  connectTls,
  sharedTlsNetwork,
  tlsNetwork,
  TLS_PROTOCOLS,
  type TlsClientOptions,
  type TlsOptions,
  type TlsProtocol,
  TlsServer,
  type TlsServerOptions,
} from "./tls.ts";
export { LIMITS, ProtocolError, type RankRanges } from "./wire.ts";
