// Calls of operators: what an entry point was given becomes a task, and the task calls a rule.
#pragma once

#include "device.h"
#include "tensors.h"

// What the first of an operator's two calls makes, and the second launches.
struct aclOpExecutor {
    const char* name;
    sim::Words arguments;
    uint64_t workspace_bytes;
};

namespace sim {

int prepare(const char* name, bool is_checked, Words arguments, uint64_t* workspace_bytes, aclOpExecutor** executor);
int launch(aclOpExecutor* executor, uint64_t workspace_bytes, aclrtStream stream);

template <class... Arguments>
Words write_down(Arguments... arguments) {
    Words written;
    (written.add(arguments), ...);
    return written;
}

}  // namespace sim
