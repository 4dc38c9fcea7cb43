#include "hub/messages.h"

namespace mosaic::nccl {

void write(Writer& to, const Signature& s) {
  to.value(s.op).value(s.dtype).value(s.reduce).value(s.ragged).value(s.root);
  to.value(s.group).value(s.sequence).value(s.index).list(s.shape).list(s.send).list(s.receive);
  to.value(static_cast<uint32_t>(s.transfers.size()));
  for (const Transfer& transfer : s.transfers) {
    to.value(transfer.send).value(transfer.peer).value(transfer.dtype).list(transfer.shape);
  }
  to.text(s.groupName).text(s.label);
}

Signature readSignature(Reader& from) {
  Signature s;
  s.op = from.value<OpKind>();
  s.dtype = from.value<uint8_t>();
  s.reduce = from.value<uint8_t>();
  s.ragged = from.value<bool>();
  s.root = from.value<uint32_t>();
  s.group = from.value<uint64_t>();
  s.sequence = from.value<uint64_t>();
  s.index = from.value<uint64_t>();
  s.shape = from.list<uint64_t>();
  s.send = from.list<uint64_t>();
  s.receive = from.list<uint64_t>();
  s.transfers.resize(from.bounded(from.value<uint32_t>(), 10));
  for (Transfer& transfer : s.transfers) {
    transfer.send = from.value<bool>();
    transfer.peer = from.value<uint32_t>();
    transfer.dtype = from.value<uint8_t>();
    transfer.shape = from.list<uint64_t>();
  }
  s.groupName = from.text();
  s.label = from.text();
  return s;
}

void write(Writer& to, const Position& position) {
  to.value(position.activity).value(position.group).value(position.sequence).text(position.name);
}

Position readPosition(Reader& from) {
  Position position;
  position.activity = from.value<Position::Activity>();
  position.group = from.value<uint64_t>();
  position.sequence = from.value<uint64_t>();
  position.name = from.text();
  return position;
}

}  // namespace mosaic::nccl
