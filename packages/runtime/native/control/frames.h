// The frames of docs/control-plane.md that ranks send and receive. Frames between agents are implemented in TypeScript
// only (packages/launcher/src/agent/frames.ts). Each frame lists its fields once, for writing, reading and tests.
#pragma once

#include <array>

#include "control/wire.h"

namespace mosaic::control {

constexpr uint32_t kMagic = 0x31436f4d;  // "MoC1"
constexpr uint32_t kProtocolVersion = 2;

#define MOSAIC_FIELD(name) archive(#name, self.name)
#define MOSAIC_FIELDS(...)                         \
  template <typename Archive, typename Self>       \
  static void fields(Archive& archive, Self& self) { \
    __VA_ARGS__;                                   \
  }

struct Hello {
  static constexpr uint8_t kType = 1;
  uint32_t magic = kMagic, version = kProtocolVersion;
  std::string secret;
  uint8_t role = 0;  // a rank
  uint32_t agent = 0;
  std::string host, address;  // sent by agents only
  MOSAIC_FIELDS(MOSAIC_FIELD(magic), MOSAIC_FIELD(version), MOSAIC_FIELD(secret), MOSAIC_FIELD(role),
                MOSAIC_FIELD(agent), MOSAIC_FIELD(host), MOSAIC_FIELD(address))
};

struct Host {
  static constexpr size_t kMinBytes = 8;
  uint32_t agent = 0;
  std::string name;
  MOSAIC_FIELDS(MOSAIC_FIELD(agent), MOSAIC_FIELD(name))
};

struct JoinMember {
  static constexpr size_t kMinBytes = 12;
  uint32_t rank = 0;
  int32_t pid = 0;
  uint32_t host = 0;
  MOSAIC_FIELDS(MOSAIC_FIELD(rank), MOSAIC_FIELD(pid), MOSAIC_FIELD(host))
};

struct Join {
  static constexpr uint8_t kType = 5;
  uint32_t world = 0;
  std::string name;
  uint32_t attempt = 0, size = 0, timeoutMs = 0, remainingMs = 0;
  std::vector<Host> hosts;
  std::vector<JoinMember> members;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(name), MOSAIC_FIELD(attempt), MOSAIC_FIELD(size),
                MOSAIC_FIELD(timeoutMs), MOSAIC_FIELD(remainingMs), MOSAIC_FIELD(hosts), MOSAIC_FIELD(members))
};

struct MemberEntry {
  static constexpr size_t kMinBytes = 8;
  uint32_t host = 0;
  int32_t pid = 0;
  MOSAIC_FIELDS(MOSAIC_FIELD(host), MOSAIC_FIELD(pid))
};

struct MemberTable {
  static constexpr uint8_t kType = 7;
  uint32_t world = 0;
  std::vector<std::string> hosts;
  std::vector<MemberEntry> members;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(hosts), MOSAIC_FIELD(members))
};

struct Refused {
  static constexpr uint8_t kType = 8;
  uint32_t world = 0;
  int32_t code = 0;
  std::string message;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(code), MOSAIC_FIELD(message))
};

struct Closed {
  static constexpr uint8_t kType = 9;
  uint32_t world = 0;
  std::string reason;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(reason))
};

struct Put {
  static constexpr uint8_t kType = 10;
  uint32_t world = 0;
  std::string key;
  Value value;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(key), MOSAIC_FIELD(value))
};

struct Get {
  static constexpr uint8_t kType = 11;
  uint32_t world = 0;
  std::string key;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(key))
};

struct ValueMessage {
  static constexpr uint8_t kType = 12;
  uint32_t world = 0;
  std::string key;
  Value value;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(key), MOSAIC_FIELD(value))
};

struct Exit {
  static constexpr size_t kMinBytes = 8;
  RankRanges ranks;
  std::string last;
  MOSAIC_FIELDS(MOSAIC_FIELD(ranks), MOSAIC_FIELD(last))
};

struct Leave {
  static constexpr uint8_t kType = 13;
  uint32_t world = 0;
  std::vector<Exit> exits;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(exits))
};

struct Exited {
  static constexpr uint8_t kType = 14;
  uint32_t world = 0;
  RankRanges ranks;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(ranks))
};

struct Loss {
  static constexpr size_t kMinBytes = 8;
  RankRanges ranks;
  std::string reason;
  MOSAIC_FIELDS(MOSAIC_FIELD(ranks), MOSAIC_FIELD(reason))
};

struct Lost {
  static constexpr uint8_t kType = 15;
  uint32_t world = 0;
  std::vector<Loss> losses;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(losses))
};

struct Failed {
  static constexpr uint8_t kType = 16;
  uint32_t world = 0, rank = 0;
  int32_t code = 0;
  std::string message;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(rank), MOSAIC_FIELD(code), MOSAIC_FIELD(message))
};

struct CallMessage {
  static constexpr uint8_t kType = 17;
  uint32_t world = 0;
  uint64_t group = 0, index = 0, history = 0;
  uint32_t rank = 0;
  RankRanges ranks;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(group), MOSAIC_FIELD(index), MOSAIC_FIELD(history),
                MOSAIC_FIELD(rank), MOSAIC_FIELD(ranks))
};

struct CallLogQuery {
  static constexpr uint8_t kType = 18;
  uint32_t world = 0, query = 0, rank = 0;
  uint64_t group = 0;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(query), MOSAIC_FIELD(rank), MOSAIC_FIELD(group))
};

struct CallEntry {
  static constexpr size_t kMinBytes = 20;
  uint64_t index = 0, history = 0;
  std::string description;
  MOSAIC_FIELDS(MOSAIC_FIELD(index), MOSAIC_FIELD(history), MOSAIC_FIELD(description))
};

struct CallLogReply {
  static constexpr uint8_t kType = 19;
  uint32_t world = 0, query = 0, rank = 0;
  std::vector<CallEntry> calls;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(query), MOSAIC_FIELD(rank), MOSAIC_FIELD(calls))
};

struct Mismatch {
  static constexpr uint8_t kType = 20;
  uint32_t world = 0;
  uint64_t group = 0;
  std::string message;
  RankRanges ranks;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(group), MOSAIC_FIELD(message), MOSAIC_FIELD(ranks))
};

struct Color {
  static constexpr size_t kMinBytes = 12;
  uint32_t rank = 0;
  int64_t color = 0;
  MOSAIC_FIELDS(MOSAIC_FIELD(rank), MOSAIC_FIELD(color))
};

struct Split {
  static constexpr uint8_t kType = 21;
  uint32_t world = 0;
  uint64_t group = 0, index = 0;
  RankRanges ranks;
  std::vector<Color> colors;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(group), MOSAIC_FIELD(index), MOSAIC_FIELD(ranks),
                MOSAIC_FIELD(colors))
};

struct Colors {
  static constexpr uint8_t kType = 22;
  uint32_t world = 0;
  uint64_t group = 0, index = 0;
  RankRanges ranks;
  std::vector<int64_t> colors;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(group), MOSAIC_FIELD(index), MOSAIC_FIELD(ranks),
                MOSAIC_FIELD(colors))
};

struct PositionsRequest {
  static constexpr uint8_t kType = 23;
  uint32_t world = 0;
  uint64_t request = 0;
  uint8_t metrics = 0;
  RankRanges ranks;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(request), MOSAIC_FIELD(metrics), MOSAIC_FIELD(ranks))
};

struct PositionsQuery {
  static constexpr uint8_t kType = 24;
  uint32_t world = 0, query = 0, timeoutMs = 0;
  uint8_t metrics = 0;
  RankRanges ranks;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(query), MOSAIC_FIELD(timeoutMs), MOSAIC_FIELD(metrics),
                MOSAIC_FIELD(ranks))
};

struct RankMetrics {
  static constexpr size_t kMinBytes = 80;
  uint64_t time = 0, steps = 0, step = 0, sinceStep = 0, waiting = 0;
  uint64_t bytesSent = 0, bytesReceived = 0, reserved = 0, peak = 0, resident = 0;
  MOSAIC_FIELDS(MOSAIC_FIELD(time), MOSAIC_FIELD(steps), MOSAIC_FIELD(step), MOSAIC_FIELD(sinceStep),
                MOSAIC_FIELD(waiting), MOSAIC_FIELD(bytesSent), MOSAIC_FIELD(bytesReceived), MOSAIC_FIELD(reserved),
                MOSAIC_FIELD(peak), MOSAIC_FIELD(resident))
};

struct RankPosition {
  static constexpr size_t kMinBytes = 45;
  RankRanges ranks;
  uint8_t activity = 0;
  uint64_t group = 0, sequence = 0, index = 0;
  std::string operation, description, last;
  std::vector<RankMetrics> metrics;  // one element if metrics were requested, else empty
  MOSAIC_FIELDS(MOSAIC_FIELD(ranks), MOSAIC_FIELD(activity), MOSAIC_FIELD(group), MOSAIC_FIELD(sequence),
                MOSAIC_FIELD(index), MOSAIC_FIELD(operation), MOSAIC_FIELD(description), MOSAIC_FIELD(last),
                MOSAIC_FIELD(metrics))
};

struct PositionsReply {
  static constexpr uint8_t kType = 25;
  uint32_t world = 0, query = 0;
  std::vector<RankPosition> positions;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(query), MOSAIC_FIELD(positions))
};

struct Positions {
  static constexpr uint8_t kType = 26;
  uint32_t world = 0;
  uint64_t request = 0;
  std::vector<RankPosition> positions;
  MOSAIC_FIELDS(MOSAIC_FIELD(world), MOSAIC_FIELD(request), MOSAIC_FIELD(positions))
};

#undef MOSAIC_FIELD
#undef MOSAIC_FIELDS

/// Returns the bytes of a frame, including its length.
template <typename Frame>
std::string encode(const Frame& frame) {
  std::string out(sizeof(uint32_t), '\0');
  out.push_back(static_cast<char>(Frame::kType));
  FieldWriter writer(out);
  Frame::fields(writer, frame);
  const auto length = static_cast<uint32_t>(out.size() - sizeof(uint32_t));
  std::memcpy(out.data(), &length, sizeof length);
  return out;
}

/// Returns the frame for the bytes of its fields, without length and type. Throws ProtocolError.
template <typename Frame>
Frame decode(const char* data, size_t size) {
  FieldReader reader(data, size);
  Frame frame;
  Frame::fields(reader, frame);
  if (!reader.isDone()) throw ProtocolError("expected the end of the frame after its last field, received more bytes");
  return frame;
}

}  // namespace mosaic::control
