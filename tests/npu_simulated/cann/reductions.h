// The arithmetic of collectives: each type that HCCL reduces, in the order of the ranks.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "third_party/hccl/inc/hccl/hccl_types.h"

namespace simulated {

inline size_t width(HcclDataType type) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_UINT8:
    case HCCL_DATA_TYPE_FP8E4M3:
    case HCCL_DATA_TYPE_FP8E5M2: return 1;
    case HCCL_DATA_TYPE_INT16:
    case HCCL_DATA_TYPE_UINT16:
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_BFP16: return 2;
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_UINT64:
    case HCCL_DATA_TYPE_FP64: return 8;
    default: return 4;
  }
}

template <class To, class From>
To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To made;
  memcpy(&made, &value, sizeof made);
  return made;
}

// Numbers of 16 bits are added as float and rounded to the nearest, ties to even.
struct Half {
  uint16_t bits;
  operator float() const { return float(same_bits<_Float16>(bits)); }
  static Half of(float value) { return {same_bits<uint16_t>(_Float16(value))}; }
};
struct BFloat {
  uint16_t bits;
  operator float() const { return same_bits<float>(uint32_t(bits) << 16); }
  static BFloat of(float value) {
    const auto all = same_bits<uint32_t>(value);
    if ((all & 0x7FFFFFFFU) > 0x7F800000U) return {uint16_t((all >> 16) | 64)};
    return {uint16_t((all + 0x7FFFU + ((all >> 16) & 1)) >> 16)};
  }
};

template <class Number>
Number joined(Number one, Number other, HcclReduceOp operation) {
  switch (operation) {
    case HCCL_REDUCE_SUM: return Number(one + other);
    case HCCL_REDUCE_PROD: return Number(one * other);
    case HCCL_REDUCE_MAX: return one > other ? one : other;
    default: return one < other ? one : other;
  }
}
template <class Number>
void join_all(void* into, const void* from, size_t count, HcclReduceOp operation) {
  auto* sums = static_cast<Number*>(into);
  auto* more = static_cast<const Number*>(from);
  for (size_t at = 0; at < count; at++) {
    if constexpr (sizeof(Number) == 2 && !std::is_integral_v<Number>)
      sums[at] = Number::of(joined<float>(sums[at], more[at], operation));
    else
      sums[at] = joined(sums[at], more[at], operation);
  }
}

inline void reduce(void* into, const void* from, size_t count, HcclDataType type, HcclReduceOp operation) {
  switch (type) {
    case HCCL_DATA_TYPE_FP32: return join_all<float>(into, from, count, operation);
    case HCCL_DATA_TYPE_INT64: return join_all<int64_t>(into, from, count, operation);
    case HCCL_DATA_TYPE_INT32: return join_all<int32_t>(into, from, count, operation);
    case HCCL_DATA_TYPE_INT16: return join_all<int16_t>(into, from, count, operation);
    case HCCL_DATA_TYPE_INT8: return join_all<int8_t>(into, from, count, operation);
    case HCCL_DATA_TYPE_FP16: return join_all<Half>(into, from, count, operation);
    case HCCL_DATA_TYPE_BFP16: return join_all<BFloat>(into, from, count, operation);
    default: throw std::runtime_error("HCCL reduces no data type " + std::to_string(int(type)));
  }
}

}  // namespace simulated
