// Reads frames in hex, one per line. For each it prints the JSON of its fields, a tab, and the hex of the fields
// encoded again, or `refused` and the reason if it cannot be decoded. For packages/runtime/test/control/frames.test.ts.
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>

#include "control/frames.h"
#include "json.h"

using namespace mosaic::control;
using mosaic::test::hexOf;
using mosaic::test::JsonWriter;

namespace {

using Replay = std::function<std::string(const std::string&)>;

template <typename Frame>
void add(std::map<uint8_t, Replay>& plays) {
  plays[Frame::kType] = [](const std::string& bytes) {
    const Frame frame = decode<Frame>(bytes.data() + 5, bytes.size() - 5);
    return JsonWriter::json(frame) + "\t" + hexOf(encode(frame));
  };
}

std::string bytesOf(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::strtoul(hex.substr(i, 2).c_str(), nullptr, 16));
  }
  return bytes;
}

template <typename... Frames>
std::map<uint8_t, Replay> replaysOf() {
  std::map<uint8_t, Replay> plays;
  (add<Frames>(plays), ...);
  return plays;
}

}  // namespace

int main() {
  const auto plays = replaysOf<Hello, Join, MemberTable, Refused, Closed, Put, Get, ValueMessage, Leave, Exited, Lost,
                             Failed, CallMessage, CallLogQuery, CallLogReply, Mismatch, Split, Colors, PositionsRequest,
                             PositionsQuery, PositionsReply, Positions>();
  for (std::string line; std::getline(std::cin, line);) {
    const std::string bytes = bytesOf(line);
    const auto play = bytes.size() < 5 ? plays.end() : plays.find(static_cast<uint8_t>(bytes[4]));
    try {
      if (play == plays.end()) throw ProtocolError("not a frame that a rank receives");
      std::cout << play->second(bytes) << "\n";
    } catch (const ProtocolError& error) {
      std::cout << "refused " << error.what() << "\n";
    }
  }
}
