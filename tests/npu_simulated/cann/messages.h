// Messages between the processes of one machine: files of a folder, each gone when its last reader has read it.
//
// SIMULATED_HCCL_FOLDER is where (else /dev/shm), HCCL_EXEC_TIMEOUT how many seconds a message is waited for.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>

namespace simulated {

constexpr size_t kAnySize = size_t(-1);

struct Header {
  std::atomic<uint32_t> readers;
  uint64_t bytes;
};

inline std::string message_file(const std::string& name) {
  const char* folder = getenv("SIMULATED_HCCL_FOLDER");
  return std::string(folder ? folder : "/dev/shm") + "/" + name;
}

inline void publish(const std::string& name, const void* data, size_t bytes, uint32_t readers) {
  if (!readers) return;
  const std::string file = message_file(name), begun = file + ".new";
  const int descriptor = open(begun.c_str(), O_CREAT | O_RDWR | O_TRUNC, 0600);
  const size_t size = sizeof(Header) + bytes;
  if (descriptor < 0 || ftruncate(descriptor, off_t(size))) throw std::runtime_error("cannot write " + begun);
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  new (at) Header{{readers}, bytes};
  if (bytes) memcpy(static_cast<char*>(at) + sizeof(Header), data, bytes);
  munmap(at, size);
  close(descriptor);
  rename(begun.c_str(), file.c_str());
}

inline void take(const std::string& name, size_t expected, const std::function<void(const char*)>& use) {
  static const char* given = getenv("HCCL_EXEC_TIMEOUT");
  static const long tries = (given ? atol(given) : 300) * 5000;
  const std::string file = message_file(name);
  int descriptor = -1;
  for (long tried = 0; (descriptor = open(file.c_str(), O_RDWR)) < 0; tried++) {
    if (tried > tries) throw std::runtime_error("HCCL: nobody sent " + file);
    usleep(200);
  }
  struct stat facts;
  fstat(descriptor, &facts);
  void* at = mmap(nullptr, size_t(facts.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  auto* header = static_cast<Header*>(at);
  const uint64_t found = header->bytes;
  if (expected == kAnySize || found == expected) use(reinterpret_cast<const char*>(header + 1));
  const bool last = header->readers.fetch_sub(1) == 1;
  munmap(at, size_t(facts.st_size));
  close(descriptor);
  if (last) unlink(file.c_str());
  if (expected != kAnySize && found != expected)
    throw std::runtime_error("HCCL: " + file + " has " + std::to_string(found) + " bytes, " +
                             std::to_string(expected) + " were expected");
}

inline void wait_until_taken(const std::string& name) {
  while (!access(message_file(name).c_str(), F_OK)) usleep(200);
}

}  // namespace simulated
