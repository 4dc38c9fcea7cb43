// Whether two declarations of one C function, or of one of its types, are called the same way.
#pragma once

#include <type_traits>

namespace check {

/// What a type is to a caller: enums are their numbers; all handles are pointers to something nobody looks into.
template <class T>
struct Plain {
  using Type = T;
};
template <class T>
  requires std::is_enum_v<T>
struct Plain<T> {
  using Type = int;
};
template <class T>
  requires std::is_class_v<T>
struct Plain<T> {
  using Type = void;
};
template <class T>
struct Plain<const T> {
  using Type = const typename Plain<T>::Type;
};
template <class T>
struct Plain<T*> {
  using Type = typename Plain<T>::Type*;
};
template <class Result, class... Arguments>
struct Plain<Result(Arguments...)> {
  using Type = typename Plain<Result>::Type(typename Plain<Arguments>::Type...);
};

template <class Ours, class Theirs>
constexpr bool same = std::is_same_v<typename Plain<Ours>::Type, typename Plain<Theirs>::Type>;

constexpr bool equal(const char* a, const char* b) {
  while (*a && *a == *b) a++, b++;
  return *a == *b;
}

}  // namespace check

#define CHECK_TEXT(name) #name
/// The name after the header's macros have had it: which version of a function they would link.
#define CHECK_LINKED(name) CHECK_TEXT(name)
