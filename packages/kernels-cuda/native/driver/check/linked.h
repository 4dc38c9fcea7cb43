// Which version of a function a header's macros would link.
#pragma once

namespace check {

constexpr bool equal(const char* a, const char* b) {
  while (*a && *a == *b) a++, b++;
  return *a == *b;
}

}  // namespace check

#define CHECK_TEXT(name) #name
/// The name after the header's macros have had it.
#define CHECK_LINKED(name) CHECK_TEXT(name)
