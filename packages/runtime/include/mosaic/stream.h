/* The ABI of a CPU stream: what `Stream.handle` points to on a device of type "cpu".
 *
 * Collectives order their work against compute through it, regardless of the package that created the stream. A device
 * with streams of another kind has a port instead (device_port.h). Plain C, so that any compiler and any allocator may
 * be used on either side.
 */
#ifndef MOSAIC_STREAM_H
#define MOSAIC_STREAM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOSAIC_STREAM_ABI 1u

/* Codes shared with `errorFromFailure` in @mosaic/core (src/errors.ts). */
enum MosaicFailureCode {
  MOSAIC_FAILURE_NONE = 0,
  MOSAIC_FAILURE_DEVICE = 1,        /* DeviceError */
  MOSAIC_FAILURE_PEER_LOST = 2,     /* PeerLostError */
  MOSAIC_FAILURE_TIMEOUT = 3,       /* CollectiveTimeoutError */
  MOSAIC_FAILURE_MISMATCH = 4,      /* CollectiveMismatchError */
  MOSAIC_FAILURE_CLOSED = 5,        /* ClosedError */
  MOSAIC_FAILURE_OUT_OF_MEMORY = 6  /* OutOfMemoryError */
};

typedef struct MosaicFailure {
  int32_t code;
  char message[2044];
} MosaicFailure;

/* One piece of work. The stream thread calls `run` exactly once, after all earlier work and before all later work.
 *
 * `upstream` is null unless the stream has failed; then it is the first failure, and the work must not access its
 * operands but only signal completion. `run` returns 0, or fills in `failure` and returns nonzero, which fails the
 * stream: all later work receives this failure as `upstream`, and reads reject with it.
 * `drop` frees `arg`; it is called once, after `run`, on the stream thread. */
typedef struct MosaicWork {
  const char *name; /* static lifetime */
  int (*run)(void *arg, const MosaicFailure *upstream, MosaicFailure *failure);
  void (*drop)(void *arg);
  void *arg;
} MosaicWork;

typedef struct MosaicStream MosaicStream;
struct MosaicStream {
  uint32_t abi; /* MOSAIC_STREAM_ABI; checked by the receiver of a handle */
  /* Appends work and returns immediately. May be called from any thread. */
  void (*submit)(MosaicStream *stream, const MosaicWork *work);
};

#ifdef __cplusplus
}
#endif
#endif
