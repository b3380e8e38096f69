// Stands for CANN's libhccl: collectives between the simulated devices of one machine.
//
// Every call is a job on its stream: it happens later than the call, and waits there for its peers.
// Making a group waits for all its ranks. Sends meet their receives. Sums are made in the order of the
// ranks, so a run repeats to the bit.
// SIMULATED_HCCL_GROUPS is how many communicators a process may have at a time (no bound without it).
#include "third_party/hccl/inc/hccl/hccl.h"

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "messages.h"
#include "reductions.h"
#include "runtime.h"

namespace simulated {
namespace {

struct Communicator {
  std::string name;
  uint32_t size, rank;
  std::atomic<uint64_t> steps{0};
  std::mutex mutex;
  std::map<std::pair<uint32_t, bool>, uint64_t> sent;  // messages so far with a peer, by direction
  std::string next() { return name + "." + std::to_string(steps++); }
};
Communicator* of(HcclComm given) { return static_cast<Communicator*>(given); }
char* bytes_of(const void* pointer) { return static_cast<char*>(simulated_contents(pointer)); }

HcclResult launch(void* stream, std::function<void()> job) {
  auto run = [](void* given) { (*static_cast<std::function<void()>*>(given))(); };
  auto drop = [](void* given) { delete static_cast<std::function<void()>*>(given); };
  simulated_launch_often(stream, run, drop, new std::function<void()>(std::move(job)));
  return HCCL_SUCCESS;
}

using Use = std::function<void(uint32_t rank, const char* data)>;

// Everybody shows some bytes; `use` sees what each of them showed, in the order of the ranks.
HcclResult everybody(HcclComm given, void* stream, const void* mine, size_t bytes, Use use) {
  Communicator* group = of(given);
  auto runs = std::make_shared<uint64_t>(0);  // a graph runs it again
  const std::string first = group->next() + ".";
  char* source = bytes_of(mine);
  return launch(stream, [=] {
    const std::string step = first + std::to_string((*runs)++) + ".";
    const std::vector<char> own(source, source + bytes);  // the result may lie where it came from
    publish(step + std::to_string(group->rank), own.data(), bytes, group->size - 1);
    for (uint32_t rank = 0; rank < group->size; rank++) {
      if (rank == group->rank) use(rank, own.data());
      else take(step + std::to_string(rank), kAnySize, [&](const char* data) { use(rank, data); });
    }
  });
}

Use summed(char* to, size_t count, size_t offset, HcclDataType type, HcclReduceOp operation) {
  return [=](uint32_t rank, const char* data) {
    if (rank == 0) memcpy(to, data + offset, count * width(type));
    else reduce(to, data + offset, count, type, operation);
  };
}

std::vector<uint64_t> list(const void* numbers, uint32_t count) {
  auto* first = static_cast<const uint64_t*>(numbers);
  return {first, first + count};
}

std::atomic<long> groups{0};

HcclResult join_group(uint32_t size, const std::string& name, uint32_t rank, HcclComm* made) {
  static const long most = setting("SIMULATED_HCCL_GROUPS", 0);
  if (++groups > most && most) {
    fprintf(stderr, "[simulated hccl] more than %ld communicators\n", most);
    return HCCL_E_MEMORY;
  }
  auto* group = new Communicator();
  group->name = name;
  group->size = size;
  group->rank = rank;
  try {
    publish(name + ".asks." + std::to_string(rank), nullptr, 0, size - 1);
    for (uint32_t other = 0; other < size; other++)
      if (other != rank) take(name + ".asks." + std::to_string(other), kAnySize, [](const char*) {});
  } catch (const std::exception& error) {
    fprintf(stderr, "[simulated hccl] %s\n", error.what());
    return HCCL_E_TIMEOUT;
  }
  *made = group;
  return HCCL_SUCCESS;
}

}  // namespace
}  // namespace simulated

using namespace simulated;

extern "C" {

// ---- groups

HcclResult HcclGetRootInfo(HcclRootInfo* info) {
  static std::atomic<int> number{0};
  memset(info, 0, sizeof *info);
  snprintf(info->internal, sizeof info->internal, "simulated-hccl-%d-%d", int(getpid()), number++);
  return HCCL_SUCCESS;
}
HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo* info, uint32_t rank, HcclComm* made) {
  return join_group(size, info->internal, rank, made);
}
HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo* info, uint32_t rank, const HcclCommConfig*,
                                      HcclComm* made) {
  return join_group(size, info->internal, rank, made);
}
HcclResult HcclCreateSubCommConfig(HcclComm* whole, uint32_t size, uint32_t*, uint64_t id, uint32_t rank,
                                   HcclCommConfig*, HcclComm* made) {
  return join_group(size, of(*whole)->name + "-" + std::to_string(id), rank, made);
}
HcclResult HcclCommDestroy(HcclComm) {
  groups--;  // the object stays: what is under way still looks at it
  return HCCL_SUCCESS;
}
HcclResult HcclGetCommName(HcclComm group, char* name) {
  strncpy(name, of(group)->name.c_str(), COMM_NAME_MAX_LENGTH - 1);
  return HCCL_SUCCESS;
}
HcclResult HcclGetRankSize(HcclComm group, uint32_t* size) {
  *size = of(group)->size;
  return HCCL_SUCCESS;
}
HcclResult HcclGetRankId(HcclComm group, uint32_t* rank) {
  *rank = of(group)->rank;
  return HCCL_SUCCESS;
}
HcclResult HcclGetCommAsyncError(HcclComm, HcclResult* error) {
  *error = HCCL_SUCCESS;
  return HCCL_SUCCESS;
}
uint32_t HcclGetCommConfigCapability() { return 3; }
HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }
HcclResult HcclCommResume(HcclComm) { return HCCL_SUCCESS; }
const char* HcclGetErrorString(HcclResult code) {
  static thread_local char text[32];
  snprintf(text, sizeof text, "HCCL error %d", int(code));
  return text;
}

// ---- collectives

HcclResult HcclBarrier(HcclComm group, aclrtStream stream) {
  return everybody(group, stream, nullptr, 0, [](uint32_t, const char*) {});
}
HcclResult HcclAllReduce(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp operation,
                         HcclComm group, aclrtStream stream) {
  return everybody(group, stream, in, count * width(type), summed(bytes_of(out), count, 0, type, operation));
}
HcclResult HcclReduce(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp operation, uint32_t root,
                      HcclComm group, aclrtStream stream) {
  const Use sum = summed(bytes_of(out), count, 0, type, operation);
  const bool here = of(group)->rank == root;
  return everybody(group, stream, in, count * width(type), [=](uint32_t rank, const char* data) {
    if (here) sum(rank, data);
  });
}
HcclResult HcclReduceScatter(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp operation,
                             HcclComm group, aclrtStream stream) {
  const size_t bytes = count * width(type);
  const Use sum = summed(bytes_of(out), count, of(group)->rank * bytes, type, operation);
  return everybody(group, stream, in, bytes * of(group)->size, sum);
}
HcclResult HcclReduceScatterV(void* in, const void* counts, const void* places, void* out, uint64_t count,
                              HcclDataType type, HcclReduceOp operation, HcclComm group, aclrtStream stream) {
  const auto sizes = list(counts, of(group)->size), starts = list(places, of(group)->size);
  size_t all = 0;
  for (uint32_t rank = 0; rank < of(group)->size; rank++) all = std::max<size_t>(all, starts[rank] + sizes[rank]);
  const Use sum = summed(bytes_of(out), count, starts[of(group)->rank] * width(type), type, operation);
  return everybody(group, stream, in, all * width(type), sum);
}
HcclResult HcclAllGather(void* in, void* out, uint64_t count, HcclDataType type, HcclComm group, aclrtStream stream) {
  char* to = bytes_of(out);
  const size_t bytes = count * width(type);
  return everybody(group, stream, in, bytes,
                   [=](uint32_t rank, const char* data) { memcpy(to + rank * bytes, data, bytes); });
}
HcclResult HcclAllGatherV(void* in, uint64_t count, void* out, const void* counts, const void* places,
                          HcclDataType type, HcclComm group, aclrtStream stream) {
  char* to = bytes_of(out);
  const auto sizes = list(counts, of(group)->size), starts = list(places, of(group)->size);
  const size_t each = width(type);
  return everybody(group, stream, in, count * each, [=](uint32_t rank, const char* data) {
    memcpy(to + starts[rank] * each, data, sizes[rank] * each);
  });
}
HcclResult HcclBroadcast(void* buffer, uint64_t count, HcclDataType type, uint32_t root, HcclComm given,
                         aclrtStream stream) {
  Communicator* group = of(given);
  const std::string step = group->next();
  char* at = bytes_of(buffer);
  const size_t bytes = count * width(type);
  return launch(stream, [=] {
    if (group->rank == root) publish(step, at, bytes, group->size - 1);
    else take(step, bytes, [&](const char* data) { memcpy(at, data, bytes); });
  });
}
HcclResult HcclScatter(void* in, void* out, uint64_t count, HcclDataType type, uint32_t root, HcclComm given,
                       aclrtStream stream) {
  Communicator* group = of(given);
  const std::string step = group->next();
  const size_t bytes = count * width(type);
  const char* from = group->rank == root ? bytes_of(in) : nullptr;
  char* to = bytes_of(out);
  return launch(stream, [=] {
    auto keep_mine = [&](const char* data) { memcpy(to, data + bytes * group->rank, bytes); };
    if (from) publish(step, from, bytes * group->size, group->size - 1), keep_mine(from);
    else take(step, bytes * group->size, keep_mine);
  });
}

// ---- what goes between two ranks

HcclResult HcclAlltoAllV(const void* in, const void* sends, const void* sends_at, HcclDataType type, const void* out,
                         const void* receives, const void* receives_at, HcclDataType, HcclComm given,
                         aclrtStream stream) {
  Communicator* group = of(given);
  const std::string step = group->next() + ".";
  const size_t each = width(type);
  const auto counts = list(sends, group->size), starts = list(sends_at, group->size);
  const auto expected = list(receives, group->size), places = list(receives_at, group->size);
  char *from = bytes_of(in), *to = bytes_of(out);
  return launch(stream, [=] {
    const uint32_t mine = group->rank;
    auto name = [&](uint32_t a, uint32_t b) { return step + std::to_string(a) + "." + std::to_string(b); };
    for (uint32_t peer = 0; peer < group->size; peer++)
      if (peer != mine) publish(name(mine, peer), from + starts[peer] * each, counts[peer] * each, 1);
    memmove(to + places[mine] * each, from + starts[mine] * each, counts[mine] * each);
    for (uint32_t peer = 0; peer < group->size; peer++) {
      if (peer == mine) continue;
      const size_t bytes = expected[peer] * each;
      take(name(peer, mine), bytes, [&](const char* data) { memcpy(to + places[peer] * each, data, bytes); });
    }
  });
}
HcclResult HcclAlltoAll(const void* in, uint64_t count, HcclDataType type, const void* out, uint64_t expected,
                        HcclDataType out_type, HcclComm group, aclrtStream stream) {
  const uint32_t size = of(group)->size;
  const std::vector<uint64_t> counts(size, count), receives(size, expected);
  std::vector<uint64_t> starts;
  for (uint32_t rank = 0; rank < size; rank++) starts.push_back(rank * count);
  return HcclAlltoAllV(in, counts.data(), starts.data(), type, out, receives.data(), starts.data(), out_type, group,
                       stream);
}
HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm given, aclrtStream stream) {
  struct Message {
    bool sends;
    char* at;
    size_t bytes;
    std::string name;
  };
  Communicator* group = of(given);
  std::lock_guard<std::mutex> lock(group->mutex);
  std::vector<Message> all;
  for (uint32_t at = 0; at < count; at++) {
    const HcclSendRecvItem& item = items[at];
    const bool sends = item.sendRecvType == HCCL_SEND;
    const uint32_t from = sends ? group->rank : item.remoteRank, to = sends ? item.remoteRank : group->rank;
    const uint64_t number = group->sent[{item.remoteRank, sends}]++;
    all.push_back({sends, bytes_of(item.buf), item.count * width(item.dataType),
                   group->name + "." + std::to_string(from) + "-" + std::to_string(to) + "." + std::to_string(number)});
  }
  return launch(stream, [all] {
    for (const auto& each : all)
      if (each.sends) publish(each.name, each.at, each.bytes, 1);
    for (const auto& each : all)
      if (!each.sends) take(each.name, each.bytes, [&](const char* data) { memcpy(each.at, data, each.bytes); });
    // A send ends when its peer has it: two that both send first, one by one, never end.
    for (const auto& each : all)
      if (each.sends) wait_until_taken(each.name);
  });
}
HcclResult HcclSend(void* buffer, uint64_t count, HcclDataType type, uint32_t peer, HcclComm group,
                    aclrtStream stream) {
  HcclSendRecvItem item{HCCL_SEND, buffer, count, type, peer};
  return HcclBatchSendRecv(&item, 1, group, stream);
}
HcclResult HcclRecv(void* buffer, uint64_t count, HcclDataType type, uint32_t peer, HcclComm group,
                    aclrtStream stream) {
  HcclSendRecvItem item{HCCL_RECV, buffer, count, type, peer};
  return HcclBatchSendRecv(&item, 1, group, stream);
}
}
