// Creates the engine for a transport's ordering.
#include "collectives/host_engine.h"
#include "collectives/stream_engine.h"
#include "mosaic/device_port.h"

namespace mosaic {

void TransportDeleter::operator()(const MosaicTransport* transport) const {
  if (transport->abi != MOSAIC_TRANSPORT_ABI) return;
  if (transport->ordering == MOSAIC_ORDER_HOST) transport->host->free(transport->host->self);
  else transport->stream->free(transport->stream->self);
}

std::shared_ptr<Engine> Engine::open(TransportPtr transport, const ComputeStream& compute,
                                     std::unique_ptr<ControlPlane> control, const EngineOptions& options,
                                     CompletionCallback onConnected) {
  const auto throwFailure = [](const std::string& reason) {
    throw Failure(MOSAIC_FAILURE_DEVICE, "collectives: " + reason);
  };
  if (transport->abi != MOSAIC_TRANSPORT_ABI) {
    throwFailure("ABI version mismatch: the transport uses version " + std::to_string(transport->abi) +
           ", this runtime uses version " +
           std::to_string(MOSAIC_TRANSPORT_ABI) + "; install the same version of all @mosaic packages");
  }
  const std::string name = transport->name;
  if (transport->ordering == MOSAIC_ORDER_HOST) {
    // The stream handle of a device with a port is of the device's own type, not a MosaicStream.
    if (!compute.stream || compute.port) {
      throwFailure(name + " supports only devices with a CPU stream, received a device " +
                   (compute.port ? "with a device port" : "without a stream"));
    }
    if (compute.stream->abi != MOSAIC_STREAM_ABI) {
      throwFailure("stream ABI version mismatch: the device uses version " + std::to_string(compute.stream->abi) +
                   ", this runtime uses version " + std::to_string(MOSAIC_STREAM_ABI) +
                   "; install the same version of all @mosaic packages");
    }
    return std::make_shared<HostEngine>(std::move(transport), compute.stream, std::move(control), options,
                                        std::move(onConnected));
  }
  if (!compute.port) {
    throwFailure(name + " supports only devices with a device port (mosaic/device_port.h), received a device "
                      "without one");
  }
  if (compute.port->abi != MOSAIC_DEVICE_PORT_ABI) {
    throwFailure("port ABI version mismatch: the device uses version " + std::to_string(compute.port->abi) +
                 ", this runtime uses version " + std::to_string(MOSAIC_DEVICE_PORT_ABI) +
                 "; install the same version of all @mosaic packages");
  }
  return std::make_shared<StreamEngine>(std::move(transport), compute, std::move(control), options,
                                        std::move(onConnected));
}

}  // namespace mosaic
