// The address window of device memory and the account of each device, for memory.cpp and virtual_memory.cpp.
#pragma once

#include <atomic>
#include <map>
#include <vector>

#include "runtime.h"

namespace simulated {

constexpr size_t kPage = 4096, kHugePage = size_t(2) << 20;

inline size_t whole(size_t bytes, size_t page) { return (bytes + page - 1) / page * page; }

struct Block {
  size_t bytes;
  int device;
};
struct Account {
  size_t capacity, used;
};

// All of it is guarded by `mutex`.
struct Memory {
  Memory();
  std::mutex mutex;
  std::map<char*, Block> blocks;         // of aclrtMalloc
  std::map<char*, size_t> pinned;        // of aclrtMallocHost
  std::vector<Account> accounts;         // by device
  aclError charge(int device, size_t bytes);
};
Memory& memory();

char* take_addresses(size_t bytes, size_t alignment);  // null where the window is used up
void fill_with_garbage(void* contents, size_t bytes);
void forget(char* device_pointer, size_t bytes);  // whoever still reads it dies

}  // namespace simulated
