// Stands for the part of CANN's libascendcl that sets up a process and tells of devices.
//
// SIMULATED_NPU_DEVICES says how many the machine has; ASCEND_RT_VISIBLE_DEVICES is obeyed as CANN
// does it: the list ends at its first entry that is no device.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <sstream>
#include <vector>

#include "runtime.h"

namespace simulated {
namespace {
thread_local std::string last_error;
thread_local int current = -1;

std::vector<int> visible() {
  const long present = setting("SIMULATED_NPU_DEVICES", 8);
  const char* listed = getenv("ASCEND_RT_VISIBLE_DEVICES");
  std::vector<int> found;
  if (!listed) {
    for (int id = 0; id < present; id++) found.push_back(id);
    return found;
  }
  std::istringstream names(listed);
  for (std::string name; std::getline(names, name, ',');) {
    char* end = nullptr;
    const long id = strtol(name.c_str(), &end, 10);
    if (name.empty() || *end || id < 0 || id >= present) break;
    found.push_back(int(id));
  }
  return found;
}
}  // namespace

aclError fail(aclError code, const std::string& text) {
  last_error = text;
  if (getenv("SIMULATED_NPU_TRACE")) fprintf(stderr, "[simulated npu] error %d: %s\n", code, text.c_str());
  return code;
}

int device_count() {
  static const int count = int(visible().size());
  return count;
}

int current_device() { return current < 0 ? 0 : current; }

}  // namespace simulated

using namespace simulated;

extern "C" {

aclError aclInit(const char*) { return ACL_SUCCESS; }
aclError aclFinalize() { return ACL_SUCCESS; }
const char* aclGetRecentErrMsg() { return last_error.c_str(); }
void simulated_complain(const char* text) { last_error = text; }

const char* aclrtGetSocName() {
  const char* name = getenv("SIMULATED_NPU_SOC");
  return name ? name : "Ascend910B2";
}
aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = uint32_t(device_count());
  return ACL_SUCCESS;
}
aclError aclrtSetDevice(int32_t id) {
  if (id < 0 || id >= device_count())
    return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtSetDevice: no device " + std::to_string(id));
  current = id;
  return ACL_SUCCESS;
}
aclError aclrtGetDevice(int32_t* id) {
  if (current < 0) return ACL_ERROR_RT_CONTEXT_NULL;
  *id = current;
  return ACL_SUCCESS;
}
aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }

// A context is its device, counted from one.
aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (current < 0) return ACL_ERROR_RT_CONTEXT_NULL;
  *context = reinterpret_cast<void*>(uintptr_t(current + 1));
  return ACL_SUCCESS;
}
aclError aclrtCreateContext(aclrtContext* context, int32_t id) {
  *context = reinterpret_cast<void*>(uintptr_t(id + 1));
  return ACL_SUCCESS;
}
aclError aclrtSetCurrentContext(aclrtContext context) {
  current = int(reinterpret_cast<uintptr_t>(context)) - 1;
  return ACL_SUCCESS;
}
aclError aclrtGetPrimaryCtxState(int32_t id, uint32_t* flags, int32_t* active) {
  if (flags) *flags = 0;
  *active = id == current;
  return ACL_SUCCESS;
}

aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 1;
  return ACL_SUCCESS;
}
aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }
aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo, int64_t* value) {
  *value = 24;  // cores, whichever kind is asked for
  return ACL_SUCCESS;
}
aclError aclGetCannAttribute(aclCannAttr, int32_t* value) {
  *value = 1;
  return ACL_SUCCESS;
}
aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  *pid = getpid();
  return ACL_SUCCESS;
}
aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
}
