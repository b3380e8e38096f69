// Stands for CANN's libopapi: the functions aclnn* that torch_npu calls from C++, by torch's CPU kernels.
//
// They run on their stream, later than the call. torch_npu names the function that it lacks ("aclnnX or
// aclnnXGetWorkspaceSize not in libopapi.so"); most are a line here.
#include "descriptors.h"

namespace {
at::ScalarType scalar_type(aclDataType type) {
  switch (type) {
    case ACL_FLOAT: return at::kFloat;
    case ACL_FLOAT16: return at::kHalf;
    case ACL_BF16: return at::kBFloat16;
    case ACL_INT8: return at::kChar;
    case ACL_UINT8: return at::kByte;
    case ACL_INT16: return at::kShort;
    case ACL_INT32: return at::kInt;
    case ACL_INT64: return at::kLong;
    case ACL_DOUBLE: return at::kDouble;
    case ACL_BOOL: return at::kBool;
    default: TORCH_CHECK(false, "no tensor of acl type ", int(type));
  }
}
std::vector<at::Tensor> hosts(const aclTensorList* given) {
  std::vector<at::Tensor> made;
  for (auto* each : given->values) made.push_back(each->host());
  return made;
}
template <class List>
int destroy_with_members(const List* list) {
  for (auto* each : list->values) delete each;
  delete list;
  return 0;
}
template <class Object>
int destroy(const Object* object) {
  delete object;
  return 0;
}
}  // namespace

at::Tensor aclTensor::host() const {
  const auto number = scalar_type(type);
  auto* at = static_cast<char*>(simulated_contents(data)) + offset * int64_t(c10::elementSize(number));
  return at::from_blob(at, sizes, strides, at::TensorOptions().dtype(number));
}

int simulated::launch(aclOpExecutor* executor, void* stream) {
  auto run = [](void* given) {
    at::AutoDispatchBelowADInplaceOrView below;
    static_cast<aclOpExecutor*>(given)->run();
  };
  simulated_launch_often(stream, run, [](void* given) { delete static_cast<aclOpExecutor*>(given); }, executor);
  return 0;
}

extern "C" {

// ---- descriptors

aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t n, aclDataType type, const int64_t* strides, int64_t offset,
                           aclFormat, const int64_t*, uint64_t, void* data) {
  return new aclTensor{{sizes, sizes + n}, {strides, strides + n}, offset, type, data};
}
aclScalar* aclCreateScalar(void* value, aclDataType type) {
  switch (type) {
    case ACL_FLOAT: return new aclScalar{*static_cast<float*>(value)};
    case ACL_DOUBLE: return new aclScalar{*static_cast<double*>(value)};
    case ACL_INT64: return new aclScalar{*static_cast<int64_t*>(value)};
    case ACL_INT32: return new aclScalar{*static_cast<int32_t*>(value)};
    case ACL_BOOL: return new aclScalar{*static_cast<bool*>(value)};
    default: TORCH_CHECK(false, "no scalar of acl type ", int(type));
  }
}
aclIntArray* aclCreateIntArray(const int64_t* v, uint64_t n) { return new aclIntArray{{v, v + n}}; }
aclFloatArray* aclCreateFloatArray(const float* v, uint64_t n) { return new aclFloatArray{{v, v + n}}; }
aclBoolArray* aclCreateBoolArray(const bool* v, uint64_t n) { return new aclBoolArray{{v, v + n}}; }
aclTensorList* aclCreateTensorList(const aclTensor* const* v, uint64_t n) { return new aclTensorList{{v, v + n}}; }
aclScalarList* aclCreateScalarList(const aclScalar* const* v, uint64_t n) { return new aclScalarList{{v, v + n}}; }
int aclDestroyTensor(const aclTensor* given) { return destroy(given); }
int aclDestroyScalar(const aclScalar* given) { return destroy(given); }
int aclDestroyIntArray(const aclIntArray* given) { return destroy(given); }
int aclDestroyFloatArray(const aclFloatArray* given) { return destroy(given); }
int aclDestroyBoolArray(const aclBoolArray* given) { return destroy(given); }
int aclDestroyTensorList(const aclTensorList* given) { return destroy_with_members(given); }
int aclDestroyScalarList(const aclScalarList* given) { return destroy_with_members(given); }

// ---- operators

ACLNN(aclnnInplaceCopy, (aclTensor * to, const aclTensor* from),
      [to = to->host(), from = from->host()] { to.copy_(from); })
ACLNN(aclnnCast, (const aclTensor* from, aclDataType, aclTensor* to),
      [to = to->host(), from = from->host()] { to.copy_(from); })
ACLNN(aclnnInplaceZero, (aclTensor * to), [to = to->host()] { to.zero_(); })
ACLNN(aclnnInplaceOne, (aclTensor * to), [to = to->host()] { to.fill_(1); })
ACLNN(aclnnInplaceFillScalar, (aclTensor * to, const aclScalar* value),
      [to = to->host(), value = value->value] { to.fill_(value); })
ACLNN(aclnnConstantPadNd, (const aclTensor* from, const aclIntArray* pad, const aclScalar* value, aclTensor* to),
      [from = from->host(), pad = pad->values, value = value->value, to = to->host()] {
        to.copy_(at::constant_pad_nd(from, pad, value));
      })
// The reciprocal of the root is kept for the gradient, float32.
ACLNN(aclnnRmsNorm, (const aclTensor* x, const aclTensor* gamma, double epsilon, aclTensor* y, aclTensor* rstd),
      [x = x->host(), gamma = gamma->host(), epsilon, y = y->host(), rstd = rstd->host()] {
        auto wide = x.to(at::kFloat);
        rstd.copy_(at::rsqrt(wide.pow(2).mean(-1, true) + epsilon).view_as(rstd));
        y.copy_(wide * rstd.view(wide.sizes().slice(0, wide.dim() - 1)).unsqueeze(-1) * gamma);
      })
ACLNN(aclnnRmsNormGrad,
      (const aclTensor* dy, const aclTensor* x, const aclTensor* rstd, const aclTensor* gamma, aclTensor* dx,
       aclTensor* dgamma),
      [dy = dy->host(), x = x->host(), rstd = rstd->host(), gamma = gamma->host(), dx = dx->host(),
       dgamma = dgamma->host()] {
        auto scale = rstd.view(x.sizes().slice(0, x.dim() - 1)).unsqueeze(-1);
        auto unit = x.to(at::kFloat) * scale;
        auto grad = dy.to(at::kFloat) * gamma;
        dx.copy_((grad - unit * (grad * unit).mean(-1, true)) * scale);
        dgamma.copy_((dy.to(at::kFloat) * unit).view({-1, x.size(-1)}).sum(0).view_as(dgamma));
      })
ACLNN(aclnnCat, (const aclTensorList* from, int64_t dim, aclTensor* to),
      [from = hosts(from), dim, to = to->host()] { to.copy_(at::cat(from, dim)); })
}
