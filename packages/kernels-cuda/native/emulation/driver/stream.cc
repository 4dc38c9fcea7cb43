#include "stream.h"

#include "mosaic/clock.h"

namespace emulated {

CUresult Health::get() const {
  const std::lock_guard lock(mutex_);
  return code_;
}

void Health::fail(CUresult code) {
  const std::lock_guard lock(mutex_);
  if (code_ == 0) code_ = code;
}

// Never destroyed: threads may outlive main.
Health& health() {
  static auto& one = *new Health;
  return one;
}

bool& inCallback() {
  static thread_local bool is = false;
  return is;
}

Stream& streamOf(CUstream handle) {
  static auto& standard = *new Stream;
  return handle ? *reinterpret_cast<Stream*>(handle) : standard;
}

void Record::reach() {
  const int64_t now = mosaic::monotonicNs();
  const std::lock_guard lock(mutex_);
  isReached_ = true;
  nanoseconds_ = now;
  reached_.notify_all();
}

void Record::await() {
  std::unique_lock lock(mutex_);
  reached_.wait(lock, [&] { return isReached_; });
}

bool Record::isReached() {
  const std::lock_guard lock(mutex_);
  return isReached_;
}

int64_t Record::nanoseconds() {
  const std::lock_guard lock(mutex_);
  return nanoseconds_;
}

Event::Event() { latest_->reach(); }

std::shared_ptr<Record> Event::record() {
  auto record = std::make_shared<Record>();
  const std::lock_guard lock(mutex_);
  return latest_ = std::move(record);
}

std::shared_ptr<Record> Event::latest() {
  const std::lock_guard lock(mutex_);
  return latest_;
}

Stream::Stream() : thread_([this] { loop(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  arrived_.notify_one();
  thread_.join();
}

void Stream::enqueue(std::function<void()> work, bool always) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(work), always});
  }
  arrived_.notify_one();
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !busy_;
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  drained_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

void Stream::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [&] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    if (work.always || health().get() == 0) work.run();
    work.run = nullptr;
    lock.lock();
    busy_ = false;
    if (queue_.empty()) drained_.notify_all();
  }
}

}  // namespace emulated
