// A collective as JavaScript writes it: a flat array of numbers, lists preceded by their length. Addresses are numbers
// too, for user space ends far below 2^53.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace mosaic {

class Words {
 public:
  Words(const double* data, size_t length) : at_(data), end_(data + length) {}

  uint64_t number() {
    if (at_ == end_) throw std::out_of_range("a call is shorter than it says");
    return static_cast<uint64_t>(*at_++);
  }
  template <typename T>
  T as() {
    return static_cast<T>(number());
  }
  uint8_t* address() { return reinterpret_cast<uint8_t*>(number()); }
  std::vector<uint64_t> list() {
    std::vector<uint64_t> values(number());
    for (uint64_t& value : values) value = number();
    return values;
  }

 private:
  const double* at_;
  const double* end_;
};

/// In the order of src/native/collectives/call.ts; the types of codes are those of the fields of `Call`.
template <typename Call>
Call readCall(Words& words) {
  Call call;
  call.op = words.as<decltype(call.op)>();
  call.dtype = words.as<decltype(call.dtype)>();
  call.reduce = words.as<decltype(call.reduce)>();
  call.root = words.as<uint32_t>();
  call.ragged = words.number() != 0;
  call.out = words.address();
  call.in = words.address();
  call.shape = words.list();
  call.send = words.list();
  call.receive = words.list();
  call.transfers.resize(words.number());
  for (auto& transfer : call.transfers) {
    transfer.send = words.number() != 0;
    transfer.peer = words.as<uint32_t>();
    transfer.data = words.address();
    transfer.dtype = words.as<decltype(transfer.dtype)>();
    transfer.shape = words.list();
  }
  return call;
}

}  // namespace mosaic
