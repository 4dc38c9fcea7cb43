#include "hub/hub.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "mosaic/clock.h"
#include "mosaic/failure.h"
#include "nccl/library.h"
#include "mosaic/thread.h"

namespace mosaic::nccl {

namespace {

constexpr int kTickMs = 100;

std::string randomToken() {
  uint8_t bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    throw Failure(MOSAIC_FAILURE_DEVICE, "nccl: the system has no random numbers");
  }
  std::string text;
  for (const uint8_t byte : bytes) text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  return text;
}

std::string listOf(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); i++) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

uint64_t partOf(uint64_t parent, uint64_t index, int64_t color) {
  uint64_t value = 0xcbf29ce484222325;  // FNV-1a over 64-bit words
  for (const uint64_t word : {parent, index, static_cast<uint64_t>(color)}) value = (value ^ word) * 0x100000001b3;
  return value;
}

Hub::Hub(const std::string& host, uint32_t size, double seconds)
    : size_(size), seconds_(seconds), token_(randomToken()), listener_(listenAt(host, port_)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  std::vector<uint32_t> ranks(size);
  for (uint32_t rank = 0; rank < size; rank++) ranks[rank] = rank;
  ledger_.addGroup(kWorld, std::move(ranks));
  thread_ = quietThread("mosaic-hub", [this] { run(); });
}

Hub::~Hub() {
  stop_ = true;
  eventfd_write(wake_, 1);
  thread_.join();
  if (listener_ >= 0) ::close(listener_);
  ::close(wake_);
}

void Hub::run() {
  const int64_t deadline = monotonicNs() + static_cast<int64_t>(seconds_ * 1e9);
  while (!stop_ && !over_) {
    std::vector<pollfd> polled{{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const auto& guest : guests_) {
      polled.push_back({guest->channel.fd(), static_cast<short>(POLLIN | (guest->channel.full() ? POLLOUT : 0)), 0});
    }
    poll(polled.data(), polled.size(), kTickMs);
    for (const auto& guest : guests_) {
      try {
        guest->channel.flush();
        guest->channel.receive([&](Frame frame, Reader& reader) { handle(*guest, frame, reader); });
      } catch (const std::exception&) {
        guest->channel.close();  // it does not speak as we do
      }
    }
    if (polled[1].revents) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) guests_.push_back(std::make_unique<Guest>(Guest{Channel(fd), {}, 0, "", 0, false}));
    }
    if (!complete_ && !refused_ && monotonicNs() >= deadline) missing();
    sweep();
  }
}

/// Lets those go that are gone, and tells the others of whom they must know.
void Hub::sweep() {
  for (size_t i = 0; i < guests_.size();) {
    if (!guests_[i]->channel.lost()) {
      i++;
      continue;
    }
    const auto gone = std::move(guests_[i]);
    guests_.erase(guests_.begin() + static_cast<ptrdiff_t>(i));
    if (complete_ && gone->rank && !gone->goodbye) toAll(std::move(Writer(Frame::Died).value(*gone->rank)));
  }
  over_ = (complete_ || refused_) && guests_.empty();
}

void Hub::handle(Guest& guest, Frame frame, Reader& reader) {
  if (frame == Frame::Hello) return hello(guest, reader);
  if (!guest.rank || !complete_) throw std::runtime_error("a rank must be welcomed first");
  const uint32_t rank = *guest.rank;
  switch (frame) {
    case Frame::Post:
      return announce(ledger_.post(rank, readSignature(reader)));
    case Frame::Color:
      return color(guest, reader);
    case Frame::Failed: {
      const auto code = reader.value<int32_t>();
      return toAll(std::move(Writer(Frame::Cause).value(rank).value(code).text(reader.text())), &guest);
    }
    case Frame::Ask:
      return toAll(std::move(Writer(Frame::Where).value(rank)), &guest);
    case Frame::Here: {
      Guest* asker = guestOf(reader.value<uint32_t>());
      Writer answer(Frame::Position);
      write(answer.value(rank), readPosition(reader));
      if (asker) asker->channel.send(std::move(answer));
      return;
    }
    case Frame::Goodbye: {
      guest.goodbye = true;
      toAll(std::move(Writer(Frame::Left).value(rank).text(reader.text())), &guest);
      return announce(ledger_.leave(rank));
    }
    default:
      throw std::runtime_error("ranks do not say that");
  }
}

void Hub::hello(Guest& guest, Reader& reader) {
  const std::string token = reader.text();
  const auto rank = reader.value<uint32_t>();
  const auto size = reader.value<uint32_t>();
  guest.pid = reader.value<uint32_t>();
  guest.host = reader.text();
  guest.version = reader.value<int>();
  if (token != token_ || guest.rank) throw std::runtime_error("a stranger");
  if (size != size_ || rank >= size_) {
    return refuse("rank " + std::to_string(rank) + " of " + std::to_string(size) + " met rank 0 of " +
                      std::to_string(size_) + "; WORLD_SIZE must agree",
                  &guest);
  }
  if (guestOf(rank)) return refuse("there are two ranks " + std::to_string(rank) + "; RANK must differ", &guest);
  if (refused_) return refuse("this world has failed to come together; start all ranks anew", &guest);
  guest.rank = rank;
  uint32_t came = 0;
  for (const auto& each : guests_) came += each->rank.has_value();
  if (came == size_) welcome();
}

void Hub::welcome() {
  // What differs in the last number only goes together.
  for (const auto& each : guests_) {
    const Guest& first = *guests_.front();
    if (!each->rank || each->version / 100 == first.version / 100) continue;
    return refuse("rank " + std::to_string(*first.rank) + " has NCCL " + versionText(first.version) + ", rank " +
                  std::to_string(*each->rank) + " has " + versionText(each->version) +
                  "; give all ranks the same, by MOSAIC_NCCL_LIBRARY or by installing it");
  }
  complete_ = true;
  std::vector<uint32_t> pids(size_);
  for (const auto& each : guests_) {
    if (each->rank) pids[*each->rank] = each->pid;
  }
  toAll(std::move(Writer(Frame::Welcome).list(pids)));
}

void Hub::missing() {
  std::vector<uint32_t> absent;
  for (uint32_t rank = 0; rank < size_; rank++) {
    if (!guestOf(rank)) absent.push_back(rank);
  }
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g s", seconds_);
  refuse(listOf(absent) + " of " + std::to_string(size_) + " did not come within " + limit);
}

void Hub::refuse(const std::string& message, Guest* only) {
  const auto code = static_cast<int32_t>(only ? MOSAIC_FAILURE_DEVICE : MOSAIC_FAILURE_TIMEOUT);
  const Writer frame = std::move(Writer(Frame::Refused).value(code).text("nccl: " + message));
  if (only) return only->channel.send(frame);
  refused_ = true;
  for (const auto& each : guests_) each->channel.send(frame);
}

/// All colors are known once all of the group have told theirs; then the parts are groups.
void Hub::color(Guest& guest, Reader& reader) {
  const auto group = reader.value<uint64_t>();
  const auto index = reader.value<uint64_t>();
  const auto& ranks = ledger_.ranksOf(group);
  Splitting& split = splits_[{group, index}];
  split.colors[*guest.rank] = reader.value<int64_t>();
  if (split.colors.size() < ranks.size()) return;
  std::vector<int64_t> colors;
  std::map<int64_t, std::vector<uint32_t>> parts;
  for (const uint32_t rank : ranks) {
    colors.push_back(split.colors.at(rank));
    parts[colors.back()].push_back(rank);
  }
  const Writer frame = std::move(Writer(Frame::Colors).value(group).value(index).list(colors));
  for (const uint32_t rank : ranks) {
    if (Guest* member = guestOf(rank)) member->channel.send(frame);
  }
  for (auto& [color, members] : parts) ledger_.addGroup(partOf(group, index, color), std::move(members));
  splits_.erase({group, index});
}

void Hub::announce(const std::vector<Verdict>& verdicts) {
  for (const Verdict& verdict : verdicts) {
    Writer frame(verdict.message.empty() ? Frame::Needed : Frame::Mismatch);
    frame.value(verdict.group);
    if (verdict.message.empty()) frame.value(verdict.sequence).value(verdict.left);
    else frame.text(verdict.message);
    for (const uint32_t rank : verdict.to) {
      if (Guest* guest = guestOf(rank)) guest->channel.send(frame);
    }
  }
}

void Hub::toAll(const Writer& frame, const Guest* but) {
  for (const auto& guest : guests_) {
    if (guest.get() != but && guest->rank) guest->channel.send(frame);
  }
}

Hub::Guest* Hub::guestOf(uint32_t rank) {
  const auto found = std::find_if(guests_.begin(), guests_.end(), [&](const auto& each) { return each->rank == rank; });
  return found == guests_.end() ? nullptr : found->get();
}

}  // namespace mosaic::nccl
