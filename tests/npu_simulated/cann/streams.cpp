// Stands for the part of CANN's libascendcl that runs streams, events and copies.
//
// Each stream is a thread with a queue: what nobody waited for has not happened. With
// SIMULATED_NPU_DELAY_US each job begins up to so many microseconds late, by numbers that follow from
// SIMULATED_NPU_SEED: whoever relies on speed where an event is needed computes with wrong bytes.
// Copies of pinned memory are jobs; pageable memory is copied before the call returns.
#include <unistd.h>

#include <cstring>
#include <set>
#include <vector>

#include "runtime.h"

namespace simulated {

void Record::happen() {
  std::lock_guard<std::mutex> lock(mutex_);
  happened_ = true;
  when = std::chrono::steady_clock::now();
  changed_.notify_all();
}
bool Record::happened() {
  std::lock_guard<std::mutex> lock(mutex_);
  return happened_;
}
void Record::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return happened_; });
}

namespace {
struct Event {
  std::mutex mutex;
  std::shared_ptr<Record> last;
  std::shared_ptr<Record> get() {
    std::lock_guard<std::mutex> lock(mutex);
    return last;
  }
};

struct Streams {
  std::mutex mutex;
  std::set<Stream*> all;
  std::vector<Stream*> defaults;
};
Streams& streams() {
  static auto* made = new Streams();
  return *made;
}
int next_id() {
  static std::atomic<int> ids{0};
  return ids++;
}
Event* event_of(aclrtEvent given) { return static_cast<Event*>(given); }
}  // namespace

Stream::Stream(int of_device) : device(of_device), id(next_id()) {
  noise_ = unsigned(id * 7919 + setting("SIMULATED_NPU_SEED", 1));
}
Stream::~Stream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    some_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}
void Stream::run() {
  static const long longest = setting("SIMULATED_NPU_DELAY_US", 0);
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    some_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    auto job = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    if (longest) std::this_thread::sleep_for(std::chrono::microseconds(rand_r(&noise_) % longest));
    std::string error;
    try {
      job();
    } catch (const std::exception& raised) {
      error = raised.what();
    }
    job = nullptr;
    lock.lock();
    if (!error.empty()) broken_ = error;
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}
void Stream::add(std::function<void()> job) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  queue_.push_back(std::move(job));
  some_.notify_one();
}
aclError Stream::drain(long milliseconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto empty = [this] { return queue_.empty() && !busy_; };
  if (milliseconds < 0) idle_.wait(lock, empty);
  else if (!idle_.wait_for(lock, std::chrono::milliseconds(milliseconds), empty))
    return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "the stream still runs");
  return broken_.empty() ? ACL_SUCCESS : fail(ACL_ERROR_RT_AICORE_EXCEPTION, broken_);
}
bool Stream::done() {
  std::lock_guard<std::mutex> lock(mutex_);
  return queue_.empty() && !busy_;
}

Stream* stream_of(aclrtStream given) {
  if (given) return static_cast<Stream*>(given);
  std::lock_guard<std::mutex> lock(streams().mutex);
  streams().defaults.resize(size_t(device_count()));
  Stream*& found = streams().defaults.at(size_t(current_device()));
  if (!found) streams().all.insert(found = new Stream(current_device()));
  return found;
}

}  // namespace simulated

using namespace simulated;

extern "C" {

void simulated_launch(void* stream, void (*job)(void*), void* argument) {
  stream_of(stream)->add([=] { job(argument); });
}

// ---- copies

aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t count, aclrtMemcpyKind) {
  if (count > room) return fail(ACL_ERROR_INVALID_PARAM, "aclrtMemcpy: no room");
  memcpy(contents(to), contents(from), count);
  return ACL_SUCCESS;
}
aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t count, aclrtMemcpyKind, aclrtStream stream) {
  if (count > room) return fail(ACL_ERROR_INVALID_PARAM, "aclrtMemcpyAsync: no room");
  auto reached = [](const void* pointer) { return on_device(pointer) || is_pinned(pointer); };
  char *target = contents(to), *source = contents(from);
  if (reached(to) && reached(from)) {
    stream_of(stream)->add([=] { memcpy(target, source, count); });
    return ACL_SUCCESS;
  }
  aclError error = stream_of(stream)->drain();
  memcpy(target, source, count);
  return error;
}
aclError aclrtMemset(void* pointer, size_t room, int32_t value, size_t count) {
  if (count > room) return fail(ACL_ERROR_INVALID_PARAM, "aclrtMemset: no room");
  memset(contents(pointer), value, count);
  return ACL_SUCCESS;
}
aclError aclrtMemsetAsync(void* pointer, size_t room, int32_t value, size_t count, aclrtStream stream) {
  if (count > room) return fail(ACL_ERROR_INVALID_PARAM, "aclrtMemsetAsync: no room");
  char* at = contents(pointer);
  stream_of(stream)->add([=] { memset(at, value, count); });
  return ACL_SUCCESS;
}

// ---- streams

aclError aclrtCreateStream(aclrtStream* stream) {
  auto* made = new Stream(current_device());
  std::lock_guard<std::mutex> lock(streams().mutex);
  streams().all.insert(made);
  *stream = made;
  return ACL_SUCCESS;
}
aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) { return aclrtCreateStream(stream); }
aclError aclrtDestroyStream(aclrtStream given) {
  auto* stream = static_cast<Stream*>(given);
  {
    std::lock_guard<std::mutex> lock(streams().mutex);
    streams().all.erase(stream);
  }
  delete stream;
  return ACL_SUCCESS;
}
aclError aclrtDestroyStreamForce(aclrtStream given) { return aclrtDestroyStream(given); }
aclError aclrtSynchronizeStream(aclrtStream stream) { return stream_of(stream)->drain(); }
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t milliseconds) {
  return stream_of(stream)->drain(milliseconds);
}
aclError aclrtSynchronizeDevice() {
  std::vector<Stream*> found;
  {
    std::lock_guard<std::mutex> lock(streams().mutex);
    for (Stream* each : streams().all)
      if (each->device == current_device()) found.push_back(each);
  }
  aclError first = ACL_SUCCESS;
  for (Stream* each : found)
    if (aclError error = each->drain()) first = first ? first : error;
  return first;
}
aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return aclrtSynchronizeDevice(); }
aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  *status = stream_of(stream)->done() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  *id = stream_of(stream)->id;
  return ACL_SUCCESS;
}

// ---- events

aclError aclrtCreateEvent(aclrtEvent* event) {
  *event = new Event();
  return ACL_SUCCESS;
}
aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return aclrtCreateEvent(event); }
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) { return aclrtCreateEvent(event); }
aclError aclrtDestroyEvent(aclrtEvent event) {
  delete event_of(event);
  return ACL_SUCCESS;
}
aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  auto record = std::make_shared<Record>();
  {
    std::lock_guard<std::mutex> lock(event_of(event)->mutex);
    event_of(event)->last = record;
  }
  stream_of(stream)->add([record] { record->happen(); });
  return ACL_SUCCESS;
}
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  if (auto record = event_of(event)->get()) stream_of(stream)->add([record] { record->wait(); });
  return ACL_SUCCESS;
}
aclError aclrtSynchronizeEvent(aclrtEvent event) {
  if (auto record = event_of(event)->get()) record->wait();
  return ACL_SUCCESS;
}
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  auto record = event_of(event)->get();
  const bool done = !record || record->happened();
  *status = done ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  auto record = event_of(event)->get();
  const bool done = !record || record->happened();
  *status = done ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  auto first = event_of(start)->get(), last = event_of(end)->get();
  if (!first || !last) return fail(ACL_ERROR_INVALID_PARAM, "an event was never recorded");
  first->wait();
  last->wait();
  *milliseconds = std::chrono::duration<float, std::milli>(last->when - first->when).count();
  return ACL_SUCCESS;
}

// ---- functions of the host, called by a stream

aclError aclrtLaunchCallback(aclrtCallback job, void* argument, aclrtCallbackBlockType, aclrtStream stream) {
  simulated_launch(stream, job, argument);
  return ACL_SUCCESS;
}
aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc job, void* argument) {
  simulated_launch(stream, job, argument);
  return ACL_SUCCESS;
}
aclError aclrtSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtProcessReport(int32_t milliseconds) {
  usleep(useconds_t(milliseconds > 0 ? std::min(milliseconds, 100) : 1) * 1000);
  return ACL_SUCCESS;
}
}
