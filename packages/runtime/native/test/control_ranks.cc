// Ranks without tensors. Executes the commands on stdin, with fields separated by tabs, and prints the events that the
// control plane delivers, one JSON object per line. Used by the tests of the control plane (test/control/ranks.ts).
#include <iostream>
#include <memory>
#include <sstream>
#include <thread>

#include "control/agent_client.h"
#include "json.h"

namespace mosaic::test {

namespace {

using Fields = std::vector<std::string>;

std::mutex printing;

/// A line of output such as {"id":"a","event":"lost","rank":2}.
class Line {
 public:
  Line(const std::string& id, const char* event) {
    field("id", quoted(id));
    field("event", quoted(event));
  }
  ~Line() {
    const std::lock_guard lock(printing);
    std::cout << "{" << text_ << "}" << std::endl;
  }
  Line& field(const char* name, const std::string& json) {
    text_ += (text_.empty() ? "" : ",") + quoted(name) + ":" + json;
    return *this;
  }
  Line& number(const char* name, int64_t value) { return field(name, std::to_string(value)); }
  Line& text(const char* name, const std::string& value) { return field(name, quoted(value)); }

 private:
  std::string text_;
};

std::vector<uint32_t> ranksOf(const std::string& list) {
  std::vector<uint32_t> ranks;
  std::istringstream in(list);
  for (std::string each; std::getline(in, each, ',');) ranks.push_back(static_cast<uint32_t>(std::stoul(each)));
  return ranks;
}

class Rank : private ControlListener {
 public:
  Rank(std::string id, const AgentOptions& options) : id_(std::move(id)), control_(options) {}
  ~Rank() override {
    control_.interrupt();
    for (std::thread& thread : threads_) thread.join();
    control_.detach();
  }

  void join(bool attached) {
    threads_.emplace_back([this, attached] {
      try {
        control_.join();
        std::string members;
        for (const Member& each : control_.members()) {
          members += (members.empty() ? "[" : ",[") + std::to_string(each.host) + "," + std::to_string(each.pid) + "]";
        }
        Line(id_, "joined").field("members", "[" + members + "]");
        if (attached) control_.attach(this);
      } catch (const Failure& failure) {
        Line(id_, "refused").number("code", failure.code()).text("message", failure.what());
      }
    });
  }
  void get(const std::string& key) {
    threads_.emplace_back([this, key] {
      try {
        Line(id_, "value").text("key", key).text("value", control_.get(key));
      } catch (const Failure& failure) {
        Line(id_, "refused").number("code", failure.code()).text("message", failure.what());
      }
    });
  }
  /// Executes the commands that do not block.
  void execute(const std::string& verb, const Fields& f) {
    const auto number = [&](size_t i) { return std::stoull(f.at(i)); };
    if (verb == "attach") control_.attach(this);
    else if (verb == "detach") control_.detach();
    else if (verb == "interrupt") control_.interrupt();
    else if (verb == "put") control_.put(f.at(0), f.at(1));
    else if (verb == "fail") control_.reportFailure(failureRecord(static_cast<MosaicFailureCode>(number(0)), f.at(1)));
    else if (verb == "call") {
      control_.reportCall(number(0), number(1), number(2), f.size() > 3 ? ranksOf(f.at(3)) : std::vector<uint32_t>());
    }
    else if (verb == "split") control_.split(number(0), number(1), ranksOf(f.at(3)), std::stoll(f.at(2)));
    else if (verb == "positions") control_.requestPositions(number(0), ranksOf(f.at(1)));
    else if (verb == "log") log(f);
    else if (verb == "at") setPosition(f);
    else if (verb == "leave") leave(f.at(0));
    else std::cerr << "no verb " << verb << std::endl;
  }

 private:
  void log(const Fields& f) {
    const std::lock_guard lock(mutex_);
    calls_.push_back({std::stoull(f.at(1)), std::stoull(f.at(2)), f.at(3)});
  }
  void setPosition(const Fields& f) {
    const std::lock_guard lock(mutex_);
    position_ = {0, static_cast<Position::Activity>(std::stoi(f.at(0))), std::stoull(f.at(1)), std::stoull(f.at(2)),
                 std::stoull(f.at(3)), f.at(4), f.at(5), f.at(6)};
  }
  void leave(const std::string& last) {
    control_.leave(last);
    Line(id_, "left");
  }

  void onPeerLost(uint32_t rank, const std::string& process) override {
    Line(id_, "lost").number("rank", rank).text("process", process);
  }
  void onPeerFailed(uint32_t rank, const MosaicFailure& cause) override {
    Line(id_, "failed").number("rank", rank).number("code", cause.code).text("message", cause.message);
  }
  void onPeerExited(uint32_t rank) override { Line(id_, "exited").number("rank", rank); }
  void onMismatch(uint64_t group, const std::string& message) override {
    Line(id_, "mismatch").text("group", std::to_string(group)).text("message", message);
  }
  void onColors(uint64_t group, uint64_t index, std::vector<int64_t> colors) override {
    Line(id_, "colors")
        .text("group", std::to_string(group))
        .text("index", std::to_string(index))
        .field("colors", JsonWriter::json(colors));
  }
  void onPositions(uint64_t request, std::vector<Position> positions) override {
    std::string list;
    for (const Position& at : positions) {
      JsonWriter fields;
      fields("rank", at.rank);
      fields("activity", static_cast<uint8_t>(at.activity));
      fields("group", at.group);
      fields("sequence", at.sequence);
      fields("index", at.index);
      fields("operation", at.operation);
      fields("description", at.description);
      fields("last", at.last);
      list += (list.empty() ? "" : ",") + fields.object();
    }
    Line(id_, "positions").text("request", std::to_string(request)).field("positions", "[" + list + "]");
  }
  void onControlLost(const std::string& reason) override {
    Line(id_, "controlLost").text("reason", reason);
  }
  Position position() override {
    const std::lock_guard lock(mutex_);
    return position_;
  }
  std::vector<CallRecord> calls(uint64_t) override {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

  const std::string id_;
  AgentClient control_;
  std::mutex mutex_;
  Position position_{0, Position::Activity::Idle, 0, 0, 0, "", "", ""};
  std::vector<CallRecord> calls_;
  std::vector<std::thread> threads_;
};

Fields fieldsOf(const std::string& line) {
  Fields fields;
  size_t at = 0;
  for (size_t tab; (tab = line.find('\t', at)) != std::string::npos; at = tab + 1) {
    fields.push_back(line.substr(at, tab - at));
  }
  fields.push_back(line.substr(at));
  return fields;
}

AgentOptions optionsOf(const Fields& f) {
  AgentOptions options;
  options.path = f.at(0);
  options.secret = f.at(1);
  options.world = f.at(2);
  options.attempt = static_cast<uint32_t>(std::stoul(f.at(3)));
  options.rank = static_cast<uint32_t>(std::stoul(f.at(4)));
  options.size = static_cast<uint32_t>(std::stoul(f.at(5)));
  options.timeoutNs = std::stoll(f.at(6)) * 1'000'000;
  return options;
}

}  // namespace

}  // namespace mosaic::test

int main() {
  using namespace mosaic::test;
  std::map<std::string, std::unique_ptr<Rank>> ranks;
  for (std::string line; std::getline(std::cin, line);) {
    Fields fields = fieldsOf(line);
    const std::string verb = fields.at(0), id = fields.at(1);
    const Fields rest(fields.begin() + 2, fields.end());
    if (verb == "open") {
      ranks[id] = std::make_unique<Rank>(id, optionsOf(rest));
    } else if (verb == "join") {
      ranks.at(id)->join(rest.empty() || rest[0] != "detached");
    } else if (verb == "get") {
      ranks.at(id)->get(rest.at(0));
    } else if (verb == "drop") {
      ranks.erase(id);
      Line(id, "dropped");
    } else {
      ranks.at(id)->execute(verb, rest);
    }
  }
}
