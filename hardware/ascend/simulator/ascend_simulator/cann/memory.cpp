// Device memory is host memory that is known to be the device's: fresh it holds NaNs, and addresses outside it are told.
#include "memory.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "counters.h"
#include "device.h"
#include "errors.h"

namespace sim {
namespace {

constexpr size_t ALIGNMENT = 512;
constexpr size_t TOTAL_BYTES = size_t{16} << 30;
// Every byte of 0xff is NaN in every float format of torch, and -1 in its integers.
constexpr int POISON = 0xff;

class Memory {
  public:
    void* take(size_t bytes) {
        const size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + (bytes == 0 ? ALIGNMENT : 0);
        if (used_ + rounded > TOTAL_BYTES) {
            throw Fault(ACL_ERROR_RT_MEMORY_ALLOCATION,
                        std::to_string(bytes) + " bytes were asked for, " + std::to_string(TOTAL_BYTES - used_) +
                            " are free of the simulated device's " + std::to_string(TOTAL_BYTES));
        }
        void* address = std::aligned_alloc(ALIGNMENT, rounded);
        if (address == nullptr) throw Fault(ACL_ERROR_RT_MEMORY_ALLOCATION, "the machine has no memory left");
        std::memset(address, POISON, rounded);
        const std::lock_guard<std::mutex> lock(mutex_);
        blocks_[static_cast<char*>(address)] = rounded;
        used_ += rounded;
        return address;
    }

    void give_back(void* address) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = blocks_.find(static_cast<char*>(address));
        if (found == blocks_.end()) throw Fault(ACL_ERROR_RT_PARAM_INVALID, "this address was not allocated");
        used_ -= found->second;
        blocks_.erase(found);
        std::free(address);
    }

    bool holds(const void* address, size_t bytes) const {
        const std::lock_guard<std::mutex> lock(mutex_);
        const char* first = static_cast<const char*>(address);
        auto found = blocks_.upper_bound(const_cast<char*>(first));
        if (found == blocks_.begin()) return false;
        --found;
        return first + bytes <= found->first + found->second;
    }

    size_t used() const { return used_; }

  private:
    mutable std::mutex mutex_;
    std::map<char*, size_t> blocks_;
    size_t used_ = 0;
};

// Never destroyed: torch_npu gives memory back while the process ends.
Memory& device_memory() {
    static Memory& memory = *new Memory;
    return memory;
}

Memory& pinned_memory() {
    static Memory& memory = *new Memory;
    return memory;
}

aclError take(Memory& memory, const char* name, void** address, size_t bytes) {
    return guarded(name, [&] { *address = memory.take(bytes); });
}

// A copy that says what it wants of its two ends, checked against what they are.
void check_ends(void* target, const void* source, size_t bytes, aclrtMemcpyKind kind) {
    const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
    const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
    if (kind == ACL_MEMCPY_DEFAULT || bytes == 0) return;
    if (is_device_memory(target, bytes) != to_device) {
        throw Fault(ACL_ERROR_RT_PARAM_INVALID, "copy of kind " + std::to_string(kind) + ": the target is on the other side");
    }
    if (is_device_memory(source, bytes) != from_device) {
        throw Fault(ACL_ERROR_RT_PARAM_INVALID, "copy of kind " + std::to_string(kind) + ": the source is on the other side");
    }
}

}  // namespace

bool is_device_memory(const void* address, size_t bytes) { return device_memory().holds(address, bytes); }
bool is_pinned_memory(const void* address, size_t bytes) { return pinned_memory().holds(address, bytes); }

}  // namespace sim

using sim::counters;
using sim::guarded;

extern "C" {

aclError aclrtMalloc(void** address, size_t bytes, aclrtMemMallocPolicy) {
    counters().device_allocations += 1;
    return sim::take(sim::device_memory(), "aclrtMalloc", address, bytes);
}
aclError aclrtMallocAlign32(void** address, size_t bytes, aclrtMemMallocPolicy policy) {
    return aclrtMalloc(address, bytes, policy);
}
aclError aclrtFree(void* address) {
    return guarded("aclrtFree", [&] { sim::device_memory().give_back(address); });
}
aclError aclrtMallocHost(void** address, size_t bytes) {
    return sim::take(sim::pinned_memory(), "aclrtMallocHost", address, bytes);
}
aclError aclrtMallocHostWithCfg(void** address, uint64_t bytes, aclrtMallocConfig*) {
    return aclrtMallocHost(address, bytes);
}
aclError aclrtFreeHost(void* address) {
    return guarded("aclrtFreeHost", [&] { sim::pinned_memory().give_back(address); });
}
aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
    *total = sim::TOTAL_BYTES;
    *free = sim::TOTAL_BYTES - sim::device_memory().used();
    return ACL_SUCCESS;
}
aclError aclrtPointerGetAttributes(const void* address, aclrtPtrAttributes* attributes) {
    *attributes = {};
    if (sim::is_device_memory(address, 1)) {
        attributes->location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    } else if (sim::is_pinned_memory(address, 1)) {
        attributes->location.type = ACL_MEM_LOCATION_TYPE_HOST;
    } else {
        attributes->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    }
    return ACL_SUCCESS;
}

// The host waits for the copy, and the copy for nothing: streams are not asked.
aclError aclrtMemcpy(void* target, size_t, const void* source, size_t bytes, aclrtMemcpyKind kind) {
    return guarded("aclrtMemcpy", [&] {
        sim::device().refuse_in_capture("a copy that the host waits for");
        sim::check_ends(target, source, bytes, kind);
        if (bytes != 0) std::memcpy(target, source, bytes);
    });
}

aclError aclrtMemcpyAsync(void* target, size_t, const void* source, size_t bytes, aclrtMemcpyKind kind,
                          aclrtStream stream) {
    return guarded("aclrtMemcpyAsync", [&] {
        sim::Device& device = sim::device();
        sim::check_ends(target, source, bytes, kind);
        const void* host = kind == ACL_MEMCPY_HOST_TO_DEVICE ? source : target;
        if (kind != ACL_MEMCPY_DEVICE_TO_DEVICE && bytes != 0 && !sim::is_pinned_memory(host, bytes)) {
            device.refuse_in_capture("an asynchronous copy with host memory that is not pinned");
        }
        device.launch(stream, std::make_shared<sim::Copy>(target, source, bytes));
    });
}

aclError aclrtMemset(void* address, size_t, int32_t value, size_t bytes) {
    return guarded("aclrtMemset", [&] {
        sim::device().refuse_in_capture("setting memory while the host waits");
        std::memset(address, value, bytes);
    });
}

aclError aclrtMemsetAsync(void* address, size_t, int32_t value, size_t bytes, aclrtStream stream) {
    return guarded("aclrtMemsetAsync", [&] {
        sim::device().launch(stream, std::make_shared<sim::Fill>(address, value, bytes));
    });
}

}  // extern "C"
