// Which addresses are device memory, and which are pinned host memory.
#pragma once

#include <cstddef>

namespace sim {

bool is_device_memory(const void* address, size_t bytes);
bool is_pinned_memory(const void* address, size_t bytes);

}  // namespace sim
