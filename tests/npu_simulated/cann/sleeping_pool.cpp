// Stands for vllm-ascend's C++ extension, of which the sleep mode uses a memory pool and nothing else.
//
// torch_npu allocates by my_malloc and my_free. The pages behind an address go and come by two functions of Python,
// and Python is told of each allocation. As in the extension, what CANN refuses is thrown, and nobody catches it: the
// process ends. ../vllm_ascend_parts.py makes the Python module.
#include <stdexcept>
#include <string>

#include "runtime.h"

namespace {
constexpr size_t kHugePage = size_t(2) << 20;

struct Allocation {
  unsigned long long device, bytes;
  void* address;
  aclrtDrvMemHandle* pages;
};
void (*told_of)(Allocation) = nullptr;
void (*asked_for)(void* address, Allocation* found) = nullptr;

void check(aclError error, const std::string& function) {
  if (error == ACL_SUCCESS) return;
  const char* words = error == ACL_ERROR_RT_MEMORY_ALLOCATION ? " (OOM: Out of Memory, allocation failed)" : "";
  throw std::runtime_error(function + " failed with acl error code: " + std::to_string(error) + words);
}
}  // namespace

extern "C" {

void tell(void (*of_new)(Allocation), void (*of_old)(void*, Allocation*)) {
  told_of = of_new;
  asked_for = of_old;
}

void create_and_map(Allocation made) {
  aclrtPhysicalMemProp wanted{};
  wanted.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
  wanted.memAttr = ACL_HBM_MEM_HUGE;
  wanted.location = {static_cast<uint32_t>(made.device), ACL_MEM_LOCATION_TYPE_DEVICE};
  check(aclrtMallocPhysical(made.pages, made.bytes, &wanted, 0), "aclrtMallocPhysical");
  check(aclrtMapMem(made.address, made.bytes, 0, *made.pages, 0), "aclrtMapMem");
}

void unmap_and_release(Allocation made) {
  check(aclrtUnmapMem(made.address), "aclrtUnmapMem");
  check(aclrtFreePhysical(*made.pages), "aclrtFreePhysical");
}

void* my_malloc(ssize_t size, int device, aclrtStream) {
  const size_t bytes = (size_t(size) + kHugePage - 1) / kHugePage * kHugePage;
  Allocation made{static_cast<unsigned long long>(device), bytes, nullptr, new aclrtDrvMemHandle};
  check(aclrtReserveMemAddress(&made.address, bytes, 0, nullptr, 0), "aclrtReserveMemAddress");
  told_of(made);
  create_and_map(made);
  return made.address;
}

void my_free(void* address, ssize_t, int, aclrtStream) {
  Allocation made{};
  asked_for(address, &made);
  unmap_and_release(made);
  check(aclrtReleaseMemAddress(address), "aclrtReleaseMemAddress");
  delete made.pages;
}
}
