// How the library reports errors: a code of acl's headers, and a sentence that names what was refused and why.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "acl/acl.h"

namespace sim {

struct Fault : std::runtime_error {
    Fault(int code, const std::string& what) : std::runtime_error(what), code(code) {}
    int code;
};

// What aclGetRecentErrMsg says next.
void set_message(const std::string& message);
std::string last_message();
// Why a rule failed, as it said itself.
std::string rule_message();

// Runs one entry point of the library; what it throws becomes a code and a message.
template <class Body>
int guarded(const char* name, Body&& body) {
    try {
        body();
        return ACL_SUCCESS;
    } catch (const Fault& fault) {
        set_message(std::string(name) + ": " + fault.what());
        return fault.code;
    }
}

}  // namespace sim
