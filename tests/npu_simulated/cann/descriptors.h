// The objects that CANN's operator library takes as arguments, and how a function of it is written here.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime.h"

struct aclTensor {
  std::vector<int64_t> sizes, strides;
  int64_t offset;
  aclDataType type;
  void* data;
  // Looks at the bytes of the device as a tensor of the host.
  at::Tensor host() const;
};
struct aclScalar { at::Scalar value; };
struct aclIntArray { std::vector<int64_t> values; };
struct aclFloatArray { std::vector<float> values; };
struct aclBoolArray { std::vector<char> values; };
struct aclTensorList { std::vector<const aclTensor*> values; };
struct aclScalarList { std::vector<const aclScalar*> values; };
struct aclOpExecutor { std::function<void()> run; };

namespace simulated {

constexpr int kInvalidParameter = 161002;  // ACLNN_ERR_PARAM_INVALID

template <class Prepare>
int prepared(uint64_t* workspace, aclOpExecutor** executor, Prepare prepare) {
  try {
    *workspace = 0;
    *executor = new aclOpExecutor{prepare()};
    return 0;
  } catch (const c10::Error& error) {
    simulated_complain(error.what_without_backtrace());
    return kInvalidParameter;
  }
}
int launch(aclOpExecutor* executor, void* stream);

}  // namespace simulated

// ACLNN(name, (parameters), job): both functions of an operator. The arguments are judged at once; the job,
// a lambda that holds all that it needs, runs on the stream.
#define UNPACK(...) __VA_ARGS__
#define ACLNN(NAME, PARAMETERS, ...)                                                             \
  int NAME##GetWorkspaceSize(UNPACK PARAMETERS, uint64_t* workspace, aclOpExecutor** executor) { \
    return simulated::prepared(workspace, executor, [&] { return __VA_ARGS__; });                \
  }                                                                                              \
  int NAME(void*, uint64_t, aclOpExecutor* executor, void* stream) { return simulated::launch(executor, stream); }
