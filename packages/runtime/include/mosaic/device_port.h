/* The ABI by which native code of other packages meets a CUDA device: what `Stream.port` points to.
 *
 * Streams and events are CUDA's own and need nobody's leave. What only the device can do lies here: fail, so that no
 * read gives wrong numbers; and kernels that work on ranks' data. Neither side knows who made the other. Every function
 * may be called from any thread until the device is closed.
 */
#ifndef MOSAIC_DEVICE_PORT_H
#define MOSAIC_DEVICE_PORT_H

#include <stddef.h>
#include <stdint.h>

#include "mosaic/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOSAIC_DEVICE_PORT_ABI 1u

enum MosaicReduceOp { MOSAIC_REDUCE_SUM = 0, MOSAIC_REDUCE_MEAN = 1, MOSAIC_REDUCE_MAX = 2 };

/* A reduction over ranks: float32, in rank order, rounded once to nearest even. A NaN wins every max. */
typedef struct MosaicRankReduction {
  uint64_t out;    /* may be `own` */
  uint64_t own;    /* this rank's operand */
  uint64_t others; /* those of the other ranks, one behind the other in rank order */
  int64_t count;   /* elements of each */
  int32_t ranks, rank;
  int32_t dtype; /* mosaic::DType */
  int32_t op;    /* MosaicReduceOp */
} MosaicRankReduction;

typedef struct MosaicDevicePort MosaicDevicePort;
struct MosaicDevicePort {
  uint32_t abi; /* MOSAIC_DEVICE_PORT_ABI; checked by whoever receives a port */
  /* Makes the device's context the calling thread's. */
  void (*enter)(MosaicDevicePort *port);
  /* Fails the device: nothing is started from now on, and whatever awaits it is rejected. The first failure stays. */
  void (*fail)(MosaicDevicePort *port, const MosaicFailure *failure);
  /* 0 while the device is sound; else fills in why it is not. */
  int (*failure)(MosaicDevicePort *port, MosaicFailure *failure);
  /* Memory in the order of `stream`, a CUstream. These return a CUresult. */
  int (*allocate)(MosaicDevicePort *port, uint64_t *address, size_t bytes, void *stream);
  int (*release)(MosaicDevicePort *port, uint64_t address, void *stream);
  int (*reduce)(MosaicDevicePort *port, const MosaicRankReduction *reduction, void *stream);
};

#ifdef __cplusplus
}
#endif
#endif
