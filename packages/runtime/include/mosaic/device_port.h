/* The ABI by which native code of other packages uses a device whose work is ordered by streams of its own, such as
 * CUDA's: what `Stream.port` points to.
 *
 * With it the collectives engine orders its communication stream against compute, fails the device so that no read
 * returns wrong numbers, and reduces operands of ranks. Every function may be called from any thread until the device
 * is closed, after `enter` where documented. An `int` result is 0 on success, otherwise `failure` is filled in.
 */
#ifndef MOSAIC_DEVICE_PORT_H
#define MOSAIC_DEVICE_PORT_H

#include <stddef.h>
#include <stdint.h>

#include "mosaic/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOSAIC_DEVICE_PORT_ABI 2u

enum MosaicReduceOp { MOSAIC_REDUCE_SUM = 0, MOSAIC_REDUCE_MEAN = 1, MOSAIC_REDUCE_MAX = 2 };

/* A reduction over ranks, computed in float32 in rank order and rounded once to nearest even. A maximum propagates NaN.
 * */
typedef struct MosaicRankReduction {
  uint64_t out;    /* may be `own` */
  uint64_t own;    /* this rank's operand */
  uint64_t others; /* operands of the other ranks, contiguous in rank order */
  int64_t count;   /* elements of each */
  int32_t ranks, rank;
  int32_t dtype; /* mosaic::DType */
  int32_t op;    /* MosaicReduceOp */
} MosaicRankReduction;

enum MosaicEventState { MOSAIC_EVENT_FAILED = -1, MOSAIC_EVENT_DONE = 0, MOSAIC_EVENT_PENDING = 1 };

typedef struct MosaicDevicePort MosaicDevicePort;
struct MosaicDevicePort {
  uint32_t abi; /* MOSAIC_DEVICE_PORT_ABI; checked by the receiver of a port */

  /* Makes the device's context current on the calling thread. Required by all functions below. */
  void (*enter)(MosaicDevicePort *port);
  /* Fails the device: no further work starts, and pending and later reads are rejected. The first failure is kept. */
  void (*fail)(MosaicDevicePort *port, const MosaicFailure *failure);
  /* Returns 0 unless the device has failed; else nonzero with the failure filled in. */
  int (*failure)(MosaicDevicePort *port, MosaicFailure *failure);

  /* Creates a stream in addition to the compute stream. Its handle is of the device's own type, such as CUstream. */
  int (*stream_create)(MosaicDevicePort *port, void **stream, MosaicFailure *failure);
  void (*stream_destroy)(MosaicDevicePort *port, void *stream);

  /* Records an event after the work enqueued so far. `is_timed` events have a time that can be queried. */
  int (*event_record)(MosaicDevicePort *port, void *stream, int is_timed, void **event, MosaicFailure *failure);
  /* Later work on `stream` runs after the event; the host does not wait. */
  int (*event_wait)(MosaicDevicePort *port, void *stream, void *event, MosaicFailure *failure);
  /* Returns a MosaicEventState; fills in `failure` if FAILED. */
  int (*event_query)(MosaicDevicePort *port, void *event, MosaicFailure *failure);
  /* Returns the time of a completed timed event, in nanoseconds of CLOCK_MONOTONIC. */
  int64_t (*event_time)(MosaicDevicePort *port, void *event);
  void (*event_release)(MosaicDevicePort *port, void *event);

  /* The functions below are executed in the order of `stream`. */
  int (*copy)(MosaicDevicePort *port, uint64_t to, uint64_t from, size_t bytes, void *stream, MosaicFailure *failure);
  int (*allocate)(MosaicDevicePort *port, uint64_t *address, size_t bytes, void *stream, MosaicFailure *failure);
  void (*release)(MosaicDevicePort *port, uint64_t address, void *stream);
  int (*reduce)(MosaicDevicePort *port, const MosaicRankReduction *reduction, void *stream, MosaicFailure *failure);
};

#ifdef __cplusplus
}
#endif
#endif
