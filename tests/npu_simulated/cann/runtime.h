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
#include <vector>

#include "third_party/acl/inc/acl/acl_base.h"
#include "third_party/acl/inc/acl/acl_rt.h"

// For libhccl and libopapi.
extern "C" {
// Where the bytes behind a device pointer lie; a host pointer is returned as it is.
void* simulated_contents(const void* pointer);
// Queue a job on a stream. What it throws breaks the stream: whoever waits for it is told.
void simulated_launch(void* stream, void (*job)(void*), void* argument);
// The same for a job that can run more than once: a graph under capture keeps it, and `drop` ends it.
void simulated_launch_often(void* stream, void (*job)(void*), void (*drop)(void*), void* argument);
// Keep a job that has already run: graphs alone run it again. Without a capture it is dropped at once.
void simulated_keep(void* stream, void (*job)(void*), void (*drop)(void*), void* argument);
// 0: nothing of the stream is kept, 1: under capture, 2: a group of tasks is replaced, and nothing runs.
int simulated_capture(void* stream);
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

struct Recording;  // of graphs.cpp
using Job = std::function<void()>;

// A queue of jobs and the thread that runs them, one after the other.
class Stream {
 public:
  explicit Stream(int device);
  ~Stream();
  void add(Job job);    // under capture it runs, and the graph keeps it
  void queue(Job job);  // it runs, and no graph keeps it
  aclError drain(long milliseconds = -1);
  bool done();
  const int device, id;
  std::shared_ptr<Recording> recording;  // what keeps its jobs, if anything does

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

// What a capture keeps of jobs that `add` gets: graphs.cpp.
bool keep(Stream* stream, const Job& job);  // false if it must not run now
std::vector<Stream*> all_streams();
Stream* stream_of(aclrtStream given);  // the default stream of this thread's device where none is given

}  // namespace simulated
