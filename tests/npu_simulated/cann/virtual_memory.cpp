// Stands for the part of CANN's libascendcl that gives out addresses and pages apart.
//
// torch_npu's expandable segments and the memory pool of vllm-ascend's sleep mode are made of it: addresses
// stay while the pages behind them go and come.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory.h"

namespace simulated {
namespace {
struct Pages {
  size_t bytes;
  int device, file;
  bool fresh = true;
};
std::map<char*, size_t>& reserved() {
  static auto* made = new std::map<char*, size_t>();
  return *made;
}
std::map<char*, size_t>& mapped() {
  static auto* made = new std::map<char*, size_t>();
  return *made;
}
bool is_reserved(char* at, size_t bytes) {
  auto behind = reserved().upper_bound(at);
  if (behind == reserved().begin()) return false;
  --behind;
  return at + bytes <= behind->first + behind->second;
}
}  // namespace
}  // namespace simulated

using namespace simulated;

extern "C" {

aclError aclrtReserveMemAddress(void** pointer, size_t size, size_t alignment, void*, uint64_t) {
  char* at = take_addresses(size, std::max(alignment, kHugePage));
  if (!at) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the window of addresses is used up");
  std::lock_guard<std::mutex> lock(memory().mutex);
  reserved()[at] = size;
  *pointer = at;
  return ACL_SUCCESS;
}
aclError aclrtReleaseMemAddress(void* pointer) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (reserved().erase(static_cast<char*>(pointer))) return ACL_SUCCESS;
  return fail(ACL_ERROR_INVALID_PARAM, "aclrtReleaseMemAddress: not reserved");
}

aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp*, aclrtMemGranularityOptions, size_t* bytes) {
  *bytes = kHugePage;
  return ACL_SUCCESS;
}
aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp* asked, uint64_t) {
  const int device = int(asked->location.id);
  if (device < 0 || device >= device_count())
    return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtMallocPhysical: no device " + std::to_string(device));
  if (size % kHugePage) return fail(ACL_ERROR_INVALID_PARAM, "aclrtMallocPhysical: not whole pages of 2 MiB");
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (aclError error = memory().charge(device, size)) return error;
  const int file = int(syscall(SYS_memfd_create, "simulated npu", 1U));
  if (file < 0 || ftruncate(file, off_t(size))) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of host memory");
  *handle = reinterpret_cast<aclrtDrvMemHandle>(new Pages{size, device, file});
  return ACL_SUCCESS;
}
aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  auto* pages = reinterpret_cast<Pages*>(handle);
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().accounts[size_t(pages->device)].used -= pages->bytes;
  close(pages->file);
  delete pages;
  return ACL_SUCCESS;
}

aclError aclrtMapMem(void* pointer, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t) {
  auto* pages = reinterpret_cast<Pages*>(handle);
  auto* at = static_cast<char*>(pointer);
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (!is_reserved(at, size)) return fail(ACL_ERROR_INVALID_PARAM, "aclrtMapMem: beyond what is reserved");
  void* bytes = mmap(contents(at), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, pages->file, off_t(offset));
  if (bytes == MAP_FAILED) return fail(ACL_ERROR_INVALID_PARAM, "aclrtMapMem: cannot be mapped");
  if (pages->fresh) fill_with_garbage(bytes, size);
  pages->fresh = false;
  mapped()[at] = size;
  return ACL_SUCCESS;
}
aclError aclrtUnmapMem(void* pointer) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto found = mapped().find(static_cast<char*>(pointer));
  if (found == mapped().end()) return fail(ACL_ERROR_INVALID_PARAM, "aclrtUnmapMem: not mapped");
  forget(found->first, found->second);
  mapped().erase(found);
  return ACL_SUCCESS;
}

aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle, aclrtMemHandleType, uint64_t, uint64_t*) {
  return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "no memory is shared between processes");
}
aclError aclrtMemImportFromShareableHandle(uint64_t, int32_t, aclrtDrvMemHandle*) {
  return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "no memory is shared between processes");
}
aclError aclrtMemSetPidToShareableHandle(uint64_t, int32_t*, size_t) {
  return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "no memory is shared between processes");
}
}
