// The message of the last error, which torch_npu appends to the exception that it raises.
#include "errors.h"

namespace sim {

namespace {
thread_local std::string recent = "no error was reported by the simulated CANN";
std::string of_rule;
}  // namespace

void set_message(const std::string& message) { recent = "simulated CANN: " + message; }

std::string rule_message() { return of_rule; }

}  // namespace sim

extern "C" {

const char* aclGetRecentErrMsg() { return sim::recent.c_str(); }

// For rules outside of this library: why one of them failed.
void sim_set_message(const char* message) { sim::of_rule = message; }

aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}

}  // extern "C"
