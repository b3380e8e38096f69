// What the parts of the simulated runtime (libascendcl) share, and what the other libraries ask of it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "third_party/acl/inc/acl/acl_base.h"
#include "third_party/acl/inc/acl/acl_rt.h"

// For libhccl and libopapi.
extern "C" {
// Where the bytes behind a device pointer lie; a host pointer is returned as it is.
void* simulated_contents(const void* pointer);
// Queue a job on a stream. What it throws breaks the stream: whoever waits for it is told.
void simulated_launch(void* stream, void (*job)(void*), void* argument);
// Let aclGetRecentErrMsg of this thread say it.
void simulated_complain(const char* text);
}

namespace simulated {

inline long setting(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

// Remember what was wrong for aclGetRecentErrMsg, and hand the code on.
aclError fail(aclError code, const std::string& text);

int device_count();
int current_device();  // of this thread; 0 where none was set, as torch_npu expects of threads of its own

bool on_device(const void* pointer);
bool is_pinned(const void* pointer);
char* contents(const void* pointer);

// One aclrtRecordEvent.
class Record {
 public:
  void happen();
  bool happened();
  void wait();
  std::chrono::steady_clock::time_point when;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool happened_ = false;
};

// A queue of jobs and the thread that runs them, one after the other.
class Stream {
 public:
  explicit Stream(int device);
  ~Stream();
  void add(std::function<void()> job);
  aclError drain(long milliseconds = -1);
  bool done();
  const int device, id;

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable some_, idle_;
  std::deque<std::function<void()>> queue_;
  std::string broken_;
  bool busy_ = false, stop_ = false;
  unsigned noise_;
  std::thread thread_;
};

Stream* stream_of(aclrtStream given);  // the default stream of this thread's device where none is given

}  // namespace simulated
