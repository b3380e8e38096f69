// Stands for the part of CANN's libascendcl that captures the work of streams and runs it again.
//
// A graph keeps jobs with the addresses that they had: it reads and writes what lies there when it runs.
// Jobs are kept in the order of the calls, of all streams that took part in the capture. A capture also
// runs what it keeps, which CANN does not: the shapes of results follow from kernels of the CPU.
// What a stream of one task group is asked for between TaskUpdateBegin and End replaces the group, unrun.
#include "runtime.h"

namespace simulated {
namespace {
// Jobs that belong together, and can be replaced.
struct Group {
  std::mutex mutex;
  std::vector<Job> jobs;
  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    const std::vector<Job> now = jobs;
    lock.unlock();
    for (const Job& each : now) each();
  }
};
}  // namespace

// A graph is what keeps the jobs, from its capture on.
struct Recording {
  std::shared_ptr<Recording> itself;  // until it is destroyed
  std::vector<Job> jobs;         // of the graph
  std::shared_ptr<Group> group;  // gets jobs instead, if there is one
  std::shared_ptr<Group> replaced;
  std::vector<Job> update;
  bool runs() const { return !replaced; }
  void keep(Job job) {
    if (replaced) update.push_back(std::move(job));
    else if (group) group->jobs.push_back(std::move(job));
    else jobs.push_back(std::move(job));
  }
};

bool keep(Stream* stream, const Job& job) {
  if (!stream->recording) return true;
  stream->recording->keep(job);
  return stream->recording->runs();
}

namespace {
Recording* of(Stream* stream) { return stream->recording.get(); }
Job job_of(void (*job)(void*), void (*drop)(void*), void* argument) {
  std::shared_ptr<void> kept(argument, drop);
  return [job, kept] { job(kept.get()); };
}
}  // namespace
}  // namespace simulated

using namespace simulated;

extern "C" {

void simulated_launch_often(void* stream, void (*job)(void*), void (*drop)(void*), void* argument) {
  stream_of(stream)->add(job_of(job, drop, argument));
}
void simulated_keep(void* stream, void (*job)(void*), void (*drop)(void*), void* argument) {
  Stream* on = stream_of(stream);
  Job kept = job_of(job, drop, argument);
  if (of(on)) of(on)->keep(std::move(kept));
}
int simulated_capture(void* stream) {
  Recording* found = of(stream_of(stream));
  return !found ? 0 : found->runs() ? 1 : 2;
}

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode) {
  Stream* on = stream_of(stream);
  if (of(on)) return fail(ACL_ERROR_INVALID_PARAM, "the stream is under capture");
  on->drain();
  on->recording = std::make_shared<Recording>();
  return ACL_SUCCESS;
}
aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status, aclmdlRI* graph) {
  Recording* found = of(stream_of(stream));
  const bool active = found && found->runs();
  *status = active ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  if (graph) *graph = active ? found : nullptr;
  return ACL_SUCCESS;
}
aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI* graph) {
  const std::shared_ptr<Recording> recording = stream_of(stream)->recording;
  if (!recording) return fail(ACL_ERROR_INVALID_PARAM, "the stream is not under capture");
  for (Stream* each : all_streams())
    if (each->recording == recording) each->recording = nullptr;
  *graph = (recording->itself = recording).get();
  return ACL_SUCCESS;
}
aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode*) { return ACL_SUCCESS; }
aclError aclmdlRIExecuteAsync(aclmdlRI graph, aclrtStream stream) {
  const auto recording = static_cast<Recording*>(graph)->itself;
  stream_of(stream)->queue([recording] {
    for (const Job& each : recording->jobs) each();
  });
  return ACL_SUCCESS;
}
aclError aclmdlRIDestroy(aclmdlRI graph) {
  static_cast<Recording*>(graph)->itself = nullptr;
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream) {
  Recording* found = of(stream_of(stream));
  if (!found || found->group) return fail(ACL_ERROR_INVALID_PARAM, "no capture, or a group in a group");
  auto group = std::make_shared<Group>();
  found->keep([group] { group->run(); });
  found->group = group;
  return ACL_SUCCESS;
}
aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp* handle) {
  Recording* found = of(stream_of(stream));
  if (!found || !found->group) return fail(ACL_ERROR_INVALID_PARAM, "no group was begun");
  // Kept for the process: a graph that is gone may still be asked for its groups.
  *handle = reinterpret_cast<aclrtTaskGrp>(new std::shared_ptr<Group>(found->group));
  found->group = nullptr;
  return ACL_SUCCESS;
}
aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp handle) {
  Stream* on = stream_of(stream);
  if (of(on)) return fail(ACL_ERROR_INVALID_PARAM, "the stream is under capture");
  on->recording = std::make_shared<Recording>();
  on->recording->replaced = *reinterpret_cast<std::shared_ptr<Group>*>(handle);
  return ACL_SUCCESS;
}
aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream) {
  Stream* on = stream_of(stream);
  const auto update = on->recording;
  if (!update || !update->replaced) return fail(ACL_ERROR_INVALID_PARAM, "no update was begun");
  on->recording = nullptr;
  if (update->update.size() != update->replaced->jobs.size())
    return fail(ACL_ERROR_INVALID_PARAM, "a group of tasks is replaced by another number of tasks");
  // In the order of the stream, as a task of its own.
  on->queue([update] {
    std::lock_guard<std::mutex> lock(update->replaced->mutex);
    update->replaced->jobs = update->update;
  });
  return ACL_SUCCESS;
}
}
