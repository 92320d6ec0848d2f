// How many threads share the items of an operator's calls.
#pragma once

#include <cstdint>

namespace trunnion_cpu {

// Of operators called on this thread, the caller included: what was set for it, else torch's number.
int64_t num_threads();

}  // namespace trunnion_cpu
