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
  std::shared_ptr<Recording> recording;  // under which it was recorded
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
void Stream::add(Job job) {
  if (keep(this, job)) queue(std::move(job));
}
void Stream::queue(Job job) {
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

std::vector<Stream*> all_streams() {
  std::lock_guard<std::mutex> lock(streams().mutex);
  return {streams().all.begin(), streams().all.end()};
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
  stream_of(stream)->queue([=] { job(argument); });
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
  aclError first = ACL_SUCCESS;
  for (Stream* each : all_streams())
    if (each->device == current_device())
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
  Event* of = event_of(event);
  auto record = std::make_shared<Record>();
  {
    std::lock_guard<std::mutex> lock(of->mutex);
    of->last = record;
    of->recording = stream_of(stream)->recording;
  }
  stream_of(stream)->queue([record] { record->happen(); });
  return ACL_SUCCESS;
}
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  Event* of = event_of(event);
  Stream* waits = stream_of(stream);
  if (auto record = of->get()) {
    // A stream that waits for a captured one is captured too.
    if (of->recording && !waits->recording) waits->recording = of->recording;
    waits->queue([record] { record->wait(); });
  }
  return ACL_SUCCESS;
}
// torch_npu's external events are numbers on the device: one stream waits for 1, and another writes it.
aclError aclrtValueWrite(void* pointer, uint64_t value, uint32_t, aclrtStream stream) {
  auto* at = reinterpret_cast<uint64_t*>(contents(pointer));
  stream_of(stream)->add([=] { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); });
  return ACL_SUCCESS;
}
aclError aclrtValueWait(void* pointer, uint64_t value, uint32_t, aclrtStream stream) {
  auto* at = reinterpret_cast<uint64_t*>(contents(pointer));
  auto job = [=] {
    while (__atomic_load_n(at, __ATOMIC_SEQ_CST) != value) usleep(20);
  };
  Stream* on = stream_of(stream);
  // A capture does not wait: nothing writes before its first replay.
  if (on->recording) keep(on, job);
  else on->queue(job);
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
  if (simulated_capture(stream)) return fail(ACL_ERROR_FEATURE_UNSUPPORTED, "graphs with functions of the host");
  simulated_launch(stream, job, argument);
  return ACL_SUCCESS;
}
aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc job, void* argument) {
  return aclrtLaunchCallback(job, argument, ACL_CALLBACK_NO_BLOCK, stream);
}
aclError aclrtSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtProcessReport(int32_t milliseconds) {
  usleep(useconds_t(milliseconds > 0 ? std::min(milliseconds, 100) : 1) * 1000);
  return ACL_SUCCESS;
}
}
