/* The ABI of a transport: what moves the bytes of collectives. docs/transports.md is its manual.
 *
 * The collectives engine of @mosaic/runtime owns everything else: queue, sequence numbers, signatures, deadlines,
 * positions, failures. A transport declares its ordering:
 *
 * - HOST: the engine's communication thread executes a collective stage by stage. It enqueues messages and calls
 *   `progress` until they are done. Operands lie in host memory.
 * - STREAM: the engine enqueues whole operations on a communication stream of the device and observes their completion
 *   by events. Operands lie in device memory.
 *
 * A table and its strings live until it is freed. Functions are called on the engine's communication thread
 * unless they state otherwise, and must not block unless they state so. Plain C, so that any compiler may be used on
 * either side; an `int` result is 0 on success, otherwise `failure` is filled in.
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

/* What an operation is, as far as other ranks can check. It is the header of every message of a host transport: the
 * receiver compares it with the one that it expects before any payload reaches a tensor. */
typedef struct MosaicSignature {
  uint32_t magic; /* changes with the layout */
  uint8_t op;     /* mosaic::OpKind */
  uint8_t dtype;  /* mosaic::DType; one more means none */
  uint8_t reduce; /* mosaic::ReduceOp */
  uint8_t axes;
  uint64_t group;
  uint64_t sequence; /* operations of this group that the sender has called, this one included */
  uint64_t index;    /* the same without sendRecv, which not every rank of a group joins */
  uint64_t bytes;    /* payload of this message */
  uint32_t root;
  uint32_t ragged; /* shapes may differ as long as the bytes agree */
  uint64_t shape[MOSAIC_MAX_AXES];
  uint64_t history; /* hash of the collectives and recorded calls of this group before this operation */
  uint64_t plan;     /* hash of the plan and the tensors, or of counts that all ranks have alike; else 0 */
} MosaicSignature;

/* How a transport compares headers: nonzero if `received` agrees with `expected`. */
typedef int (*MosaicMatches)(const MosaicSignature *expected, const MosaicSignature *received);

/* ---- bootstrap ---------------------------------------------------------------------------------------------- */

/* What a transport receives about the ranks, and how ranks exchange addresses before they can communicate.
 * `put` and `get` go through the control plane; keys are of this world, values at most 64 KiB. */
typedef struct MosaicBootstrap MosaicBootstrap;
struct MosaicBootstrap {
  uint32_t rank, size;
  const uint32_t *hosts; /* by rank: the number of its host */
  const int32_t *pids;   /* by rank */
  MosaicMatches matches;
  /* Publishes a value. Fails for one that is too long. */
  int (*put)(MosaicBootstrap *bootstrap, const char *key, const void *value, uint64_t bytes, MosaicFailure *failure);
  /* Waits until some rank has put the key, and copies at most `capacity` bytes of its value; `bytes` receives its whole
   * length. Fails when each call has waited as long as ranks may take to connect, when a rank is lost,
   * or when this one is closed. May block. */
  int (*get)(MosaicBootstrap *bootstrap, const char *key, void *value, uint64_t capacity, uint64_t *bytes,
             MosaicFailure *failure);
  /* Nonzero once `connect` must return without having connected: this rank is closed, or another is lost or has failed.
   * `interrupt` is called when it changes. Any failure will do: the engine replaces it by the cause. */
  int (*interrupted)(MosaicBootstrap *bootstrap);
  int64_t timeout; /* nanoseconds that the transport may take to connect the ranks */
};

/* ---- host ordering ------------------------------------------------------------------------------------------ */

enum MosaicMessageState {
  MOSAIC_MESSAGE_PENDING = 0,
  MOSAIC_MESSAGE_DONE = 1,
  MOSAIC_MESSAGE_MISMATCH = 2, /* a receive whose header is not the expected one: see `received` */
  MOSAIC_MESSAGE_CLOSED = 3    /* the peer closed in order and will neither send nor receive it */
};

/* One message under way. The engine owns it and its payload; both stay where they are until the message is done or
 * `cancel` has returned. Messages between the same two ranks arrive in the order in which they were enqueued. */
typedef struct MosaicMessage MosaicMessage;
struct MosaicMessage {
  uint8_t *data;             /* payload, `signature.bytes` long */
  uint32_t peer;             /* world rank */
  uint32_t state;            /* MosaicMessageState; written by the transport */
  uint64_t moved;            /* payload bytes that have moved; written and read by the transport */
  MosaicSignature signature; /* as sent, or as expected */
  MosaicSignature received;  /* the header that arrived, once `state` is MISMATCH */
  MosaicMessage *next;       /* the transport's own */
  uint64_t transport[2];     /* the transport's own */
};

/* The sum, mean or max over the ranks of a group, in rank order: this rank's operand from `own`, the others' from
 * `messages`, which are receives without data. Float32 accumulation, one rounding (mosaic/reduction.h). */
typedef struct MosaicReduction {
  uint8_t *out;
  const uint8_t *own;
  uint64_t count; /* elements */
  uint8_t dtype;  /* mosaic::DType */
  uint8_t op;     /* mosaic::ReduceOp */
  /* `out` overlaps what is being sent: write nothing before all sends are done. */
  uint8_t after_sends;
  uint32_t ranks;            /* operands, this rank's included */
  uint32_t position;         /* of `own` among them */
  MosaicMessage *messages;   /* ranks − 1 receives, in rank order */
  MosaicMessage *sends;      /* what must be done first if `after_sends` */
  uint32_t sends_count;
  uint64_t reduced;          /* elements done; written by the transport */
} MosaicReduction;

typedef struct MosaicHostTransport {
  void *self;
  /* Connects this rank with the others. May block; must return soon after `interrupt`. */
  int (*connect)(void *self, MosaicBootstrap *bootstrap, MosaicFailure *failure);
  /* Any thread: makes `connect` and `wait` return early, now or when next called. */
  void (*interrupt)(void *self);
  /* Enqueue. `progress` moves them. */
  void (*send)(void *self, MosaicMessage *message);
  void (*receive)(void *self, MosaicMessage *message);
  /* Enqueues a reduction and its receives, to be computed where operands arrive; nonzero. Null, or 0 for one that it
   * declines: the engine receives the operands and reduces them itself. */
  int (*reduce)(void *self, MosaicReduction *reduction);
  /* Moves what can be moved now. Returns nonzero if anything moved. */
  int (*progress)(void *self);
  /* Sleeps until `progress` may have something to do, `interrupt` is called or the time has passed. Before it sleeps it
   * must see `ready(arg)` return 0 after any later `interrupt` or arrival is certain to wake it. */
  void (*wait)(void *self, int64_t nanoseconds, int (*ready)(void *arg), void *arg);
  /* Whether the transport itself observes that the process or host of a peer is gone. Called ten times a second. */
  int (*lost)(void *self, uint32_t rank);
  /* Drops everything that is enqueued: when it returns, no operand is read or written any more. */
  void (*cancel)(void *self);
  /* Closes in order: messages of the others to and from this rank become CLOSED once what was sent has been received.
   * Everything enqueued here is done or cancelled. Only `interrupt` and `free` may follow. */
  void (*close)(void *self);
  /* Frees `self` and the table. Any thread, once the communication thread has ended. */
  void (*free)(void *self);
} MosaicHostTransport;

/* ---- stream ordering ---------------------------------------------------------------------------------------- */

/* One stage of a collective, as a transport enqueues it on a stream. Peers are ranks of the communicator. */
typedef struct MosaicStreamMessage {
  uint64_t address, bytes;
  uint32_t peer;
} MosaicStreamMessage;

enum MosaicStreamCollective { MOSAIC_STREAM_NONE = 0, MOSAIC_STREAM_ALL_GATHER = 1, MOSAIC_STREAM_BROADCAST = 2 };

typedef struct MosaicStreamStage {
  /* Sends and receives, posted as one group: none waits for another. */
  const MosaicStreamMessage *sends, *receives;
  uint32_t sends_count, receives_count;
  /* Or one collective of equal shares: `bytes` of each rank from `in` to `out`. */
  int32_t collective; /* MosaicStreamCollective */
  uint32_t root;
  uint64_t in, out, bytes;
} MosaicStreamStage;

enum MosaicCommunicatorState {
  MOSAIC_COMMUNICATOR_READY = 0,
  MOSAIC_COMMUNICATOR_BUSY = 1,
  MOSAIC_COMMUNICATOR_FAILED = 2
};

typedef struct MosaicCommunicator MosaicCommunicator; /* the transport's own */

/* Failures state what the library reports, not in which operation: the engine adds that. */
typedef struct MosaicStreamTransport {
  void *self;
  /* Nonzero: before its first operation every communicator carries a byte between any two ranks, one all-gather and one
   * broadcast, so that no connection is made in the middle of a program, where ranks may be busy elsewhere. */
  int32_t warm_up;
  /* What helps where ranks do not become connected in time: the end of that message. May be null. */
  const char *remedy;
  /* Begins to make the communicator of all ranks. May block in `bootstrap->get`. */
  int (*connect)(void *self, MosaicBootstrap *bootstrap, MosaicCommunicator **world, MosaicFailure *failure);
  /* Begins to split `parent`, on which nothing runs; collective over it. `color` ≥ 0 counts the distinct colors of the
   * group in order. The part exists once `parent` is READY again, and is used once it is READY itself. */
  int (*split)(void *self, MosaicCommunicator *parent, int32_t color, uint32_t rank, MosaicCommunicator **part,
               MosaicFailure *failure);
  /* READY, BUSY while a call has not had its effect, or FAILED with the reason. Polled. */
  int (*state)(void *self, MosaicCommunicator *communicator, MosaicFailure *failure);
  /* Enqueues a stage on `stream`, the device's own handle. Only on a READY communicator, which it may leave BUSY. */
  int (*enqueue)(void *self, MosaicCommunicator *communicator, const MosaicStreamStage *stage, void *stream,
                 MosaicFailure *failure);
  /* Begins to flush before `destroy`; the communicator is BUSY until all ranks have. */
  void (*finalize)(void *self, MosaicCommunicator *communicator);
  void (*destroy)(void *self, MosaicCommunicator *communicator);
  /* Ends what runs on all of them, together, and frees them. `enter` makes the device's context the calling thread's.
   * May block until the device has released them. */
  void (*abort)(void *self, MosaicCommunicator *const *communicators, uint32_t count, void (*enter)(void *arg),
                void *arg);
  /* Frees `self` and the table; no communicator is left. Any thread, once the communication thread has ended. */
  void (*free)(void *self);
} MosaicStreamTransport;

/* ---- the table ---------------------------------------------------------------------------------------------- */

typedef struct MosaicTransport {
  uint32_t abi;      /* MOSAIC_TRANSPORT_ABI; checked by the engine */
  int32_t ordering;  /* MosaicOrdering: which of the two tables is set */
  const char *name;  /* in messages and thread names: "shared memory", "nccl" */
  const MosaicHostTransport *host;
  const MosaicStreamTransport *stream;
} MosaicTransport;

#ifdef __cplusplus
}
#endif
#endif
