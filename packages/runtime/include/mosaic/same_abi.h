// Compares the ABIs of two declarations of one C function, or of one of its types.
#pragma once

#include <cstddef>
#include <type_traits>

namespace check {

template <size_t bytes, size_t alignment>
struct StructLayout {};

/// Maps a type to its representation in the ABI: enums to their underlying integers, structures to their bytes.
/// Structures behind pointers are not compared, because they are checked by themselves and many are opaque handles.
template <class T>
struct AbiType {
  using Type = T;
};
template <class T>
  requires std::is_enum_v<T>
struct AbiType<T> {
  using Type = int;
};
template <class T>
  requires std::is_class_v<T>
struct AbiType<T> {
  using Type = StructLayout<sizeof(T), alignof(T)>;
};
template <class T>
struct AbiType<const T> {
  using Type = const typename AbiType<T>::Type;
};
template <class T>
  requires(!std::is_class_v<T>)
struct AbiType<T*> {
  using Type = typename AbiType<T>::Type*;
};
template <class T>
  requires(std::is_class_v<T> && !std::is_const_v<T>)
struct AbiType<T*> {
  using Type = void*;
};
template <class T>
  requires(std::is_class_v<T> && std::is_const_v<T>)
struct AbiType<T*> {
  using Type = const void*;
};
template <class Result, class... Arguments>
struct AbiType<Result(Arguments...)> {
  using Type = typename AbiType<Result>::Type(typename AbiType<std::remove_cv_t<Arguments>>::Type...);
};

template <class Actual, class Expected>
constexpr bool hasSameAbi = std::is_same_v<typename AbiType<Actual>::Type, typename AbiType<Expected>::Type>;

}  // namespace check
