// What has happened since the process began, for tests that count from outside of the code under test.
#pragma once

#include <cstdint>

namespace sim {

struct Counters {
    int64_t device_allocations = 0;
    int64_t launches = 0;
    int64_t replays = 0;
    int64_t updates = 0;
    int64_t waits = 0;
};

Counters& counters();

}  // namespace sim
