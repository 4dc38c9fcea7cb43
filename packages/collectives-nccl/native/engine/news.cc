// What a rank hears from the hub, and answers.
#include "engine/engine.h"

namespace mosaic::nccl {

void Engine::listen() {
  if (hub_.lost()) return;
  hub_.flush();
  try {
    hub_.receive([this](Frame frame, Reader& reader) { hear(frame, reader); });
  } catch (const std::exception&) {
    hub_.close();
  }
  // The hub ends with rank 0's process. If that has left, the others go on without news; else it has died.
  if (hub_.lost() && !left_.contains(0)) gone_.try_emplace(0);
}

void Engine::hear(Frame frame, Reader& reader) {
  switch (frame) {
    case Frame::Welcome:
      pids_ = reader.list<uint32_t>();
      welcome_ = true;
      return;
    case Frame::Refused: {
      const auto code = reader.value<int32_t>();
      refused_ = recordOf(static_cast<MosaicFailureCode>(code), reader.text());
      return;
    }
    case Frame::Died:
      gone_.try_emplace(reader.value<uint32_t>());
      return;
    case Frame::Left: {
      const auto rank = reader.value<uint32_t>();
      left_[rank] = reader.text();
      return;
    }
    case Frame::Cause: {
      const auto rank = reader.value<uint32_t>();
      const auto code = reader.value<int32_t>();
      gone_.try_emplace(rank, Gone{recordOf(static_cast<MosaicFailureCode>(code), reader.text())});
      return;
    }
    case Frame::Mismatch: {
      const auto group = reader.value<uint64_t>();
      mismatches_.try_emplace(group, reader.text());
      return;
    }
    case Frame::Needed: {
      const auto group = reader.value<uint64_t>();
      const auto sequence = reader.value<uint64_t>();
      needed_.try_emplace({group, sequence}, reader.value<uint32_t>());
      return;
    }
    case Frame::Colors: {
      const auto group = reader.value<uint64_t>();
      const auto index = reader.value<uint64_t>();
      colors_[{group, index}] = reader.list<int64_t>();
      return;
    }
    case Frame::Where: {
      const auto asker = reader.value<uint32_t>();
      Writer answer(Frame::Here);
      answer.value(asker);
      write(answer, position());
      hub_.send(std::move(answer));
      return;
    }
    case Frame::Position: {
      const auto rank = reader.value<uint32_t>();
      positions_[rank] = readPosition(reader);
      return;
    }
    default:
      throw std::runtime_error("the hub does not say that");
  }
}

Position Engine::position() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) return {Position::Activity::Idle, 0, 0, last_};
  Operation& op = *queue_.front();
  const bool held = op.ready && driver().eventQuery(op.ready) == cuda::CUDA_ERROR_NOT_READY;
  return {held ? Position::Activity::Computing : Position::Activity::Running, op.signature.group,
          op.signature.sequence, op.name()};
}

}  // namespace mosaic::nccl
