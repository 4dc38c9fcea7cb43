/**
 * The agent of the control plane, whose protocol is specified in docs/control-plane.md. `mosaic-run` runs an agent for
 * its ranks. If ranks are started otherwise, the first rank of a host starts `@mosaic/launcher/agent-process`.
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
