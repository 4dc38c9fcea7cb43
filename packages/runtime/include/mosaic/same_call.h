// Whether two declarations of one C function, or of one of its types, are called the same way.
#pragma once

#include <cstddef>
#include <type_traits>

namespace check {

template <size_t bytes, size_t alignment>
struct Bytes {};

/// What a type is to a caller: enums are their numbers, structures their bytes; what a pointer to a structure points to
/// is the structure's affair, and many are handles that nobody looks into.
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
  using Type = Bytes<sizeof(T), alignof(T)>;
};
template <class T>
struct Plain<const T> {
  using Type = const typename Plain<T>::Type;
};
template <class T>
  requires(!std::is_class_v<T>)
struct Plain<T*> {
  using Type = typename Plain<T>::Type*;
};
template <class T>
  requires(std::is_class_v<T> && !std::is_const_v<T>)
struct Plain<T*> {
  using Type = void*;
};
template <class T>
  requires(std::is_class_v<T> && std::is_const_v<T>)
struct Plain<T*> {
  using Type = const void*;
};
template <class Result, class... Arguments>
struct Plain<Result(Arguments...)> {
  using Type = typename Plain<Result>::Type(typename Plain<std::remove_cv_t<Arguments>>::Type...);
};

template <class Ours, class Theirs>
constexpr bool same = std::is_same_v<typename Plain<Ours>::Type, typename Plain<Theirs>::Type>;

}  // namespace check
