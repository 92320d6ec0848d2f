// The message of the last error, which torch_npu appends to the exception that it raises.
#include "errors.h"

namespace sim {

namespace {
thread_local std::string last;
thread_local std::string shown;
std::string of_rule;
}  // namespace

void set_message(const std::string& message) { last = message; }

std::string last_message() { return last; }

std::string rule_message() { return of_rule; }

}  // namespace sim

extern "C" {

const char* aclGetRecentErrMsg() {
    sim::shown = "simulated CANN: " + sim::last;
    return sim::shown.c_str();
}

// For rules outside of this library: why one of them failed.
void sim_set_message(const char* message) { sim::of_rule = message; }

aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}

}  // extern "C"
