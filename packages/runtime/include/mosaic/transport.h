/* The ABI of a transport, which moves the bytes of collectives. docs/transports.md is its manual.
 *
 * The collectives engine of @mosaic/runtime owns everything else: queue, sequence numbers, signatures, deadlines,
 * positions, failures. A transport declares its ordering:
 *
 * - HOST: the engine's communication thread executes a collective stage by stage. It enqueues messages and calls
 *   `progress` until they are done. Operands are in host memory.
 * - STREAM: the engine enqueues whole operations on a communication stream of the device and observes their completion
 *   by events. Operands are in device memory.
 *
 * A table and its strings stay valid until it is freed. Functions are called on the engine's communication thread
 * and must not block, unless they state otherwise. Plain C, so that any compiler may be used on either side. A function
 * with a `failure` parameter returns 0 on success and otherwise fills in `failure`, unless it states otherwise.
 */
#ifndef MOSAIC_TRANSPORT_H
#define MOSAIC_TRANSPORT_H

#include <stdint.h>

#include "mosaic/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOSAIC_TRANSPORT_ABI 3u
#define MOSAIC_MAX_AXES 8

enum MosaicOrdering { MOSAIC_ORDER_HOST = 1, MOSAIC_ORDER_STREAM = 2 };

/* The properties of an operation that other ranks can check. It is the header of every message of a host transport. The
 * receiver compares it with the expected one before it writes any payload to a tensor. */
typedef struct MosaicSignature {
  uint32_t magic; /* changes with the layout */
  uint8_t op;     /* mosaic::OpKind */
  uint8_t dtype;  /* mosaic::DType; 3 (kNoDType): no operand */
  uint8_t reduce; /* mosaic::ReduceOp */
  uint8_t axes;
  uint64_t group;
  uint64_t sequence; /* number of operations of this group that the sender has called, this one included */
  uint64_t index;    /* the same without sendRecv, in which not every rank of a group takes part */
  uint64_t bytes;    /* payload of this message */
  uint32_t root;
  uint32_t ragged; /* shapes may differ as long as the bytes agree */
  uint64_t shape[MOSAIC_MAX_AXES];
  uint64_t history; /* hash of the collectives and recorded calls of this group before this operation */
  uint64_t plan;    /* hash of the plan and the tensors, or of counts that are the same on all ranks; else 0 */
} MosaicSignature;

/* Compares headers: returns nonzero if `received` matches `expected`. */
typedef int (*MosaicMatches)(const MosaicSignature *expected, const MosaicSignature *received);

/* ---- bootstrap ---------------------------------------------------------------------------------------------- */

/* Information about the ranks, and functions to exchange addresses before the ranks can communicate. `put` and `get`
 * use the control plane. Keys are local to this world; values have at most 64 KiB. */
typedef struct MosaicBootstrap MosaicBootstrap;
struct MosaicBootstrap {
  uint32_t rank, size;
  const uint32_t *hosts; /* by rank: host number */
  const int32_t *pids;   /* by rank */
  MosaicMatches matches;
  /* Publishes a value. Fails if it is too long. */
  int (*put)(MosaicBootstrap *bootstrap, const char *key, const void *value, uint64_t bytes, MosaicFailure *failure);
  /* Waits until some rank has put the key, and copies at most `capacity` bytes of its value; `bytes` receives its whole
   * length. Fails when the call has waited for `timeout`, when another rank is lost or has failed, or when this rank is
   * closed. May block. */
  int (*get)(MosaicBootstrap *bootstrap, const char *key, void *value, uint64_t capacity, uint64_t *bytes,
             MosaicFailure *failure);
  /* Returns nonzero once `connect` must return without having connected, because this rank is closed, or another is
   * lost or has failed. `interrupt` is called when it changes. `connect` may return any failure: the engine replaces it
   * by the cause. */
  int (*interrupted)(MosaicBootstrap *bootstrap);
  int64_t timeout; /* nanoseconds that the transport may take to connect the ranks */
};

/* ---- host ordering ------------------------------------------------------------------------------------------ */

enum MosaicMessageState {
  MOSAIC_MESSAGE_PENDING = 0,
  MOSAIC_MESSAGE_DONE = 1,
  MOSAIC_MESSAGE_MISMATCH = 2, /* a receive whose header is not the expected one: see `received` */
  MOSAIC_MESSAGE_CLOSED = 3    /* the peer closed in order and will neither send nor receive the message */
};

/* One message in flight. The engine owns it and its payload, and moves neither until the message is done or `cancel`
 * has returned. Messages between the same two ranks arrive in the order in which they were enqueued. */
typedef struct MosaicMessage MosaicMessage;
struct MosaicMessage {
  uint8_t *data;             /* payload, `signature.bytes` long */
  uint32_t peer;             /* world rank */
  uint32_t state;            /* MosaicMessageState; written by the transport */
  uint64_t moved;            /* payload bytes transferred so far; written and read by the transport */
  MosaicSignature signature; /* the header to send, or the expected one */
  MosaicSignature received;  /* the header that arrived, once `state` is MISMATCH */
  MosaicMessage *next;       /* for use by the transport */
  uint64_t transport[2];     /* for use by the transport */
};

/* The sum, mean or max over the ranks of a group, in rank order. This rank's operand is in `own`, those of the other
 * ranks arrive in `messages`, which are receives without data. Accumulated in float32, rounded once
 * (mosaic/reduction.h). */
typedef struct MosaicReduction {
  uint8_t *out;
  const uint8_t *own;
  uint64_t count; /* elements */
  uint8_t dtype;  /* mosaic::DType */
  uint8_t op;     /* mosaic::ReduceOp */
  /* `out` overlaps data being sent, so nothing may be written before all sends are done. */
  uint8_t after_sends;
  uint32_t ranks;            /* number of operands, this rank's included */
  uint32_t position;         /* position of `own` among the operands */
  MosaicMessage *messages;   /* ranks − 1 receives, in rank order */
  MosaicMessage *sends;      /* sends that must be done first if `after_sends` */
  uint32_t sends_count;
  uint64_t reduced;          /* elements reduced so far; written by the transport */
} MosaicReduction;

typedef struct MosaicHostTransport {
  void *self;
  /* Connects this rank with the others. May block, but must return soon after `interrupt`. */
  int (*connect)(void *self, MosaicBootstrap *bootstrap, MosaicFailure *failure);
  /* Makes `connect` and `wait` return early, now or when next called. Called on any thread. */
  void (*interrupt)(void *self);
  /* Enqueue a message, which `progress` transfers. */
  void (*send)(void *self, MosaicMessage *message);
  void (*receive)(void *self, MosaicMessage *message);
  /* Enqueues a reduction and its receives, and returns nonzero; the transport then reduces operands as they arrive. If
   * null, or if it returns 0, the engine receives the operands and reduces them itself. */
  int (*reduce)(void *self, MosaicReduction *reduction);
  /* Transfers the data that can be transferred now. Returns nonzero if any was. */
  int (*progress)(void *self);
  /* Sleeps until `progress` may have something to do, `interrupt` is called or the time has passed. It must first
   * ensure that any later `interrupt` or arrival wakes it, then call `ready(arg)`, and sleep only if that returns 0. */
  void (*wait)(void *self, int64_t nanoseconds, int (*ready)(void *arg), void *arg);
  /* Returns nonzero if the transport itself observes that the process or host of a peer has ended. Called ten times a
   * second. */
  int (*lost)(void *self, uint32_t rank);
  /* Drops everything that is enqueued. Once it has returned, no operand is read or written any more. */
  void (*cancel)(void *self);
  /* Closes in order: on the other ranks, messages to and from this rank become CLOSED once everything that it sent has
   * been received. All messages of this rank are done or cancelled. Only `interrupt` and `free` may follow. */
  void (*close)(void *self);
  /* Frees `self` and the table. Called on any thread, once the communication thread has ended. */
  void (*free)(void *self);
} MosaicHostTransport;

/* ---- stream ordering ---------------------------------------------------------------------------------------- */

/* A message of one stage of a collective, which a transport enqueues on a stream. Peers are ranks of its
 * communicator. */
typedef struct MosaicStreamMessage {
  uint64_t address, bytes;
  uint32_t peer;
} MosaicStreamMessage;

enum MosaicStreamCollective { MOSAIC_STREAM_NONE = 0, MOSAIC_STREAM_ALL_GATHER = 1, MOSAIC_STREAM_BROADCAST = 2 };

typedef struct MosaicStreamStage {
  /* Either sends and receives, posted as one group: none waits for another. */
  const MosaicStreamMessage *sends, *receives;
  uint32_t sends_count, receives_count;
  /* Or one collective with equal shares, which transfers `bytes` of each rank from `in` to `out`. */
  int32_t collective; /* MosaicStreamCollective */
  uint32_t root;
  uint64_t in, out, bytes;
} MosaicStreamStage;

enum MosaicCommunicatorState {
  MOSAIC_COMMUNICATOR_READY = 0,
  MOSAIC_COMMUNICATOR_BUSY = 1,
  MOSAIC_COMMUNICATOR_FAILED = 2
};

typedef struct MosaicCommunicator MosaicCommunicator; /* defined by the transport */

/* Failures contain the library's report, but not the operation, which the engine adds. */
typedef struct MosaicStreamTransport {
  void *self;
  /* If nonzero, the engine warms up every communicator: it exchanges a byte between any two ranks, and executes one
   * all-gather and one broadcast. Then no connection is made later in a program, when other ranks may be busy. */
  int32_t warm_up;
  /* Remedy at the end of the error message for ranks that do not connect in time. May be null. */
  const char *remedy;
  /* Begins to create the communicator of all ranks. May block in `bootstrap->get`. */
  int (*connect)(void *self, MosaicBootstrap *bootstrap, MosaicCommunicator **world, MosaicFailure *failure);
  /* Begins to split `parent`, on which no operation runs. Collective over `parent`. `color` ≥ 0 is the index of this
   * rank's color among the sorted distinct colors of the group. The part exists once `parent` is READY again, and may
   * be used once it is READY itself. */
  int (*split)(void *self, MosaicCommunicator *parent, int32_t color, uint32_t rank, MosaicCommunicator **part,
               MosaicFailure *failure);
  /* Returns READY, BUSY while a call is still in progress, or FAILED with the reason in `failure`. Polled. */
  int (*state)(void *self, MosaicCommunicator *communicator, MosaicFailure *failure);
  /* Enqueues a stage on `stream`, a handle of the device's own type. The communicator must be READY and may become
   * BUSY. */
  int (*enqueue)(void *self, MosaicCommunicator *communicator, const MosaicStreamStage *stage, void *stream,
                 MosaicFailure *failure);
  /* Begins to flush the communicator before `destroy`. It is BUSY until all ranks have done the same. */
  void (*finalize)(void *self, MosaicCommunicator *communicator);
  void (*destroy)(void *self, MosaicCommunicator *communicator);
  /* Ends the operations that run on all of these communicators, together, and frees them. `enter` makes the device's
   * context current on the calling thread. May block until the device has released them. */
  void (*abort)(void *self, MosaicCommunicator *const *communicators, uint32_t count, void (*enter)(void *arg),
                void *arg);
  /* Frees `self` and the table; no communicator is left. Called on any thread, once the communication thread has
   * ended. */
  void (*free)(void *self);
} MosaicStreamTransport;

/* ---- the table ---------------------------------------------------------------------------------------------- */

typedef struct MosaicTransport {
  uint32_t abi;      /* MOSAIC_TRANSPORT_ABI; checked by the engine */
  int32_t ordering;  /* MosaicOrdering: determines which of the two tables is set */
  const char *name;  /* in messages and thread names: "shared memory", "nccl" */
  const MosaicHostTransport *host;
  const MosaicStreamTransport *stream;
} MosaicTransport;

#ifdef __cplusplus
}
#endif
#endif
