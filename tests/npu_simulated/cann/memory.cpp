// Stands for the part of CANN's libascendcl that gives out memory of the device and pinned memory of the host.
//
// Device memory is a window of addresses that nobody may touch (PROT_NONE); the bytes lie in a second
// window. Host code that follows a device pointer dies of SIGSEGV: on a node it could not read it either.
// Fresh memory is full of NaN, freed memory is unmapped, and no address is given out twice.
// SIMULATED_NPU_CAPACITY is what each device has, in bytes.
#include "memory.h"

#include <sys/mman.h>

#include <cstring>

namespace simulated {
namespace {
constexpr size_t kWindow = size_t(1) << 40;

struct Window {
  char *device, *bytes;
  std::atomic<size_t> next{0};
  Window() : device(reserve()), bytes(reserve()) {}
  static char* reserve() {
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* at = mmap(nullptr, kWindow, PROT_NONE, how, -1, 0);
    if (at == MAP_FAILED) abort();
    return static_cast<char*>(at);
  }
};
Window& window() {
  static auto* made = new Window();
  return *made;
}
}  // namespace

Memory::Memory() {
  const auto capacity = size_t(setting("SIMULATED_NPU_CAPACITY", 4L << 30));
  accounts.assign(size_t(device_count()), {capacity, 0});
}
Memory& memory() {
  static auto* made = new Memory();
  return *made;
}

aclError Memory::charge(int device, size_t bytes) {
  Account& account = accounts.at(size_t(device));
  if (account.used + bytes > account.capacity)
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                "out of device memory: " + std::to_string(bytes) + " bytes more beside " +
                    std::to_string(account.used) + " of " + std::to_string(account.capacity));
  account.used += bytes;
  return ACL_SUCCESS;
}

bool on_device(const void* pointer) {
  auto* at = static_cast<const char*>(pointer);
  return at >= window().device && at < window().device + kWindow;
}
char* contents(const void* pointer) {
  auto* at = static_cast<char*>(const_cast<void*>(pointer));
  return on_device(at) ? window().bytes + (at - window().device) : at;
}
bool is_pinned(const void* pointer) {
  auto* at = static_cast<char*>(const_cast<void*>(pointer));
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto behind = memory().pinned.upper_bound(at);
  if (behind == memory().pinned.begin()) return false;
  --behind;
  return at < behind->first + behind->second;
}

char* take_addresses(size_t bytes, size_t alignment) {
  size_t before = window().next.load(), at, end;
  do {
    at = whole(before, alignment);
    end = at + whole(bytes, kPage) + kPage;  // a page between any two
  } while (!window().next.compare_exchange_weak(before, end));
  return end > kWindow ? nullptr : window().device + at;
}
void fill_with_garbage(void* bytes, size_t count) { memset(bytes, 0xFF, count); }  // NaN in every floating type
void forget(char* device_pointer, size_t bytes) {
  const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  mmap(contents(device_pointer), bytes, PROT_NONE, how, -1, 0);
}

}  // namespace simulated

using namespace simulated;

extern "C" {

void* simulated_contents(const void* pointer) { return contents(pointer); }

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free_bytes, size_t* total) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  const Account& account = memory().accounts.at(size_t(current_device()));
  *total = account.capacity;
  *free_bytes = account.capacity - account.used;
  return ACL_SUCCESS;
}

aclError aclrtMallocAlign32(void** pointer, size_t size, aclrtMemMallocPolicy) {
  const size_t bytes = whole(size, kPage);
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (aclError error = memory().charge(current_device(), bytes)) return error;
  char* at = take_addresses(bytes, kHugePage);
  if (!at) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the window of addresses is used up");
  mprotect(contents(at), bytes, PROT_READ | PROT_WRITE);
  fill_with_garbage(contents(at), bytes);
  memory().blocks[at] = {bytes, current_device()};
  *pointer = at;
  return ACL_SUCCESS;
}
aclError aclrtMalloc(void** pointer, size_t size, aclrtMemMallocPolicy policy) {
  return aclrtMallocAlign32(pointer, size + 32, policy);  // CANN adds 32 bytes for its kernels
}
aclError aclrtFree(void* pointer) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto found = memory().blocks.find(static_cast<char*>(pointer));
  if (found == memory().blocks.end()) return fail(ACL_ERROR_INVALID_PARAM, "aclrtFree: no block begins there");
  memory().accounts[size_t(found->second.device)].used -= found->second.bytes;
  forget(found->first, found->second.bytes);
  memory().blocks.erase(found);
  return ACL_SUCCESS;
}

aclError aclrtMallocHost(void** pointer, size_t size) {
  *pointer = aligned_alloc(kPage, whole(size ? size : 1, kPage));
  if (!*pointer) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of host memory");
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().pinned[static_cast<char*>(*pointer)] = size;
  return ACL_SUCCESS;
}
aclError aclrtFreeHost(void* pointer) {
  {
    std::lock_guard<std::mutex> lock(memory().mutex);
    memory().pinned.erase(static_cast<char*>(pointer));
  }
  free(pointer);
  return ACL_SUCCESS;
}

aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
  memset(attributes, 0, sizeof *attributes);
  attributes->location.type = on_device(pointer)   ? ACL_MEM_LOCATION_TYPE_DEVICE
                              : is_pinned(pointer) ? ACL_MEM_LOCATION_TYPE_HOST
                                                   : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  attributes->location.id = on_device(pointer) ? uint32_t(current_device()) : 0;
  return ACL_SUCCESS;
}
}
