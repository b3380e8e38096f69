// Stands for CANN's libacl_op_compiler: options are kept, and no operator is compiled.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int64_t options[64];

int aclSetCompileopt(int option, const char* value) { return 0; }
size_t aclGetCompileoptSize(int option) { return 8; }
int aclGetCompileopt(int option, char* value, size_t length) {
  strncpy(value, "disable", length);
  return 0;
}
int aclrtSetSysParamOpt(int option, int64_t value) {
  options[option & 63] = value;
  return 0;
}
int aclrtCtxSetSysParamOpt(int option, int64_t value) { return aclrtSetSysParamOpt(option, value); }
int aclrtGetSysParamOpt(int option, int64_t* value) {
  *value = options[option & 63];
  return 0;
}
// The way of operators that have no aclnn function; the message says which was wanted.
int aclopCompileAndExecute(const char* name, ...) {
  fprintf(stderr, "[simulated npu] no kernel %s\n", name);
  return 500001;
}
