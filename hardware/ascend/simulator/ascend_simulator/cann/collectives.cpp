// HCCL between processes of one machine: ranks meet at a socket of the first, which passes around what each has.
//
// A collective is a task of its stream, in a graph too; it blocks the process until all ranks have come to it. Sums are
// made by every rank alike, in the order of the ranks, in float32 for bfloat16, and rounded once.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "device.h"
#include "errors.h"
#include "memory.h"
#include "third_party/hccl/inc/hccl/hccl.h"

namespace sim {
namespace {

constexpr int TIMEOUT_SECONDS = 120;

[[noreturn]] void fail(const std::string& what) {
    throw Fault(HCCL_E_SYSCALL, what + ": " + std::strerror(errno));
}

class Socket {
  public:
    explicit Socket(int descriptor) : descriptor_(descriptor) {
        if (descriptor_ < 0) fail("socket");
        const timeval limit{TIMEOUT_SECONDS, 0};
        setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
    Socket& operator=(Socket&&) = delete;
    ~Socket() {
        if (descriptor_ >= 0) close(descriptor_);
    }

    int descriptor() const { return descriptor_; }
    void write(const void* from, size_t bytes) const {
        for (const char* next = static_cast<const char*>(from); bytes != 0;) {
            const ssize_t done = send(descriptor_, next, bytes, MSG_NOSIGNAL);
            if (done <= 0) fail("a rank is gone, or does not answer");
            next += done;
            bytes -= static_cast<size_t>(done);
        }
    }
    void read(void* to, size_t bytes) const {
        for (char* next = static_cast<char*>(to); bytes != 0;) {
            const ssize_t done = recv(descriptor_, next, bytes, 0);
            if (done <= 0) fail("a rank is gone, or does not come");
            next += done;
            bytes -= static_cast<size_t>(done);
        }
    }

  private:
    int descriptor_;
};

// A name that begins with a zero stands in no folder, and goes with the process.
sockaddr_un address_of(const std::string& name) {
    sockaddr_un found{};
    found.sun_family = AF_UNIX;
    std::memcpy(found.sun_path + 1, name.data(), std::min(name.size(), sizeof found.sun_path - 1));
    return found;
}

struct Communicator {
    uint32_t rank;
    uint32_t size;
    std::string name;
    // Of the first rank those of the others, in their order; of the others that of the first.
    std::vector<Socket> peers;

    // What each rank has, one after the other.
    std::vector<char> gather(const void* own, size_t bytes) const {
        std::vector<char> all(bytes * size);
        if (rank != 0) {
            peers.front().write(own, bytes);
            peers.front().read(all.data(), all.size());
            return all;
        }
        std::memcpy(all.data(), own, bytes);
        for (size_t other = 1; other < size; ++other) peers[other - 1].read(all.data() + other * bytes, bytes);
        for (const Socket& peer : peers) peer.write(all.data(), all.size());
        return all;
    }
};

std::map<std::string, Socket>& listeners() {
    static auto& found = *new std::map<std::string, Socket>;
    return found;
}

std::string listen_somewhere() {
    static int made = 0;
    const std::string name = "ascend-simulator-" + std::to_string(getpid()) + "-" + std::to_string(made++);
    Socket listener(socket(AF_UNIX, SOCK_STREAM, 0));
    const sockaddr_un address = address_of(name);
    if (bind(listener.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("bind");
    if (listen(listener.descriptor(), SOMAXCONN) != 0) fail("listen");
    listeners().emplace(name, std::move(listener));
    return name;
}

void accept_others(Communicator& communicator) {
    const auto listener = listeners().find(communicator.name);
    if (listener == listeners().end()) throw Fault(HCCL_E_PARA, "rank 0 did not make this root info");
    std::map<uint32_t, Socket> found;
    while (found.size() + 1 < communicator.size) {
        pollfd waiting{listener->second.descriptor(), POLLIN, 0};
        if (poll(&waiting, 1, TIMEOUT_SECONDS * 1000) <= 0) throw Fault(HCCL_E_TIMEOUT, "a rank does not come");
        Socket peer(accept(listener->second.descriptor(), nullptr, nullptr));
        uint32_t rank = 0;
        peer.read(&rank, sizeof rank);
        found.emplace(rank, std::move(peer));
    }
    for (auto& [rank, peer] : found) communicator.peers.push_back(std::move(peer));
    listeners().erase(listener);
}

void connect_to_first(Communicator& communicator) {
    Socket first(socket(AF_UNIX, SOCK_STREAM, 0));
    const sockaddr_un address = address_of(communicator.name);
    // The first rank listens before it tells the name.
    if (connect(first.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
    first.write(&communicator.rank, sizeof communicator.rank);
    communicator.peers.push_back(std::move(first));
}

size_t size_of(HcclDataType type) {
    switch (type) {
        case HCCL_DATA_TYPE_INT8:
        case HCCL_DATA_TYPE_UINT8:
            return 1;
        case HCCL_DATA_TYPE_INT16:
        case HCCL_DATA_TYPE_UINT16:
        case HCCL_DATA_TYPE_FP16:
        case HCCL_DATA_TYPE_BFP16:
            return 2;
        case HCCL_DATA_TYPE_INT32:
        case HCCL_DATA_TYPE_UINT32:
        case HCCL_DATA_TYPE_FP32:
            return 4;
        case HCCL_DATA_TYPE_INT64:
        case HCCL_DATA_TYPE_UINT64:
        case HCCL_DATA_TYPE_FP64:
            return 8;
        default:
            throw Fault(HCCL_E_NOT_SUPPORT, "data type " + std::to_string(type) + " is not modelled");
    }
}

template <class Value>
void add(const std::vector<char>& all, uint32_t ranks, uint64_t count, void* out) {
    auto* sums = static_cast<Value*>(out);
    const auto* values = reinterpret_cast<const Value*>(all.data());
    for (uint64_t index = 0; index < count; ++index) {
        Value sum = values[index];
        for (uint32_t rank = 1; rank < ranks; ++rank) sum += values[rank * count + index];
        sums[index] = sum;
    }
}

float widened(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t rounded(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void add_bfloat16(const std::vector<char>& all, uint32_t ranks, uint64_t count, void* out) {
    auto* sums = static_cast<uint16_t*>(out);
    const auto* values = reinterpret_cast<const uint16_t*>(all.data());
    for (uint64_t index = 0; index < count; ++index) {
        float sum = widened(values[index]);
        for (uint32_t rank = 1; rank < ranks; ++rank) sum += widened(values[rank * count + index]);
        sums[index] = rounded(sum);
    }
}

void add_up(HcclDataType type, const std::vector<char>& all, uint32_t ranks, uint64_t count, void* out) {
    switch (type) {
        case HCCL_DATA_TYPE_FP32:
            return add<float>(all, ranks, count, out);
        case HCCL_DATA_TYPE_BFP16:
            return add_bfloat16(all, ranks, count, out);
        case HCCL_DATA_TYPE_INT32:
            return add<int32_t>(all, ranks, count, out);
        case HCCL_DATA_TYPE_INT64:
            return add<int64_t>(all, ranks, count, out);
        default:
            throw Fault(HCCL_E_NOT_SUPPORT, "sums of data type " + std::to_string(type) + " are not modelled");
    }
}

class Collective : public Task {
  public:
    Collective(std::string name, Communicator* communicator, const void* own, size_t bytes, void* out, size_t out_bytes)
        : Task(std::move(name)), communicator_(communicator), own_(own), bytes_(bytes), out_(out), out_bytes_(out_bytes) {}

    bool advance() override {
        if (!is_device_memory(own_, bytes_) || !is_device_memory(out_, out_bytes_)) {
            throw Fault(ACL_ERROR_RT_PARAM_INVALID, name + " was given an address that is not device memory, or no longer");
        }
        finish(communicator_->gather(own_, bytes_), out_);
        return true;
    }

  protected:
    virtual void finish(const std::vector<char>& all, void* out) const {
        std::memcpy(out, all.data(), all.size());
    }
    uint32_t ranks() const { return communicator_->size; }

  private:
    Communicator* communicator_;
    const void* own_;
    size_t bytes_;
    void* out_;
    size_t out_bytes_;
};

class Sum : public Collective {
  public:
    Sum(Communicator* communicator, const void* own, uint64_t count, HcclDataType type, void* out)
        : Collective("HcclAllReduce", communicator, own, count * size_of(type), out, count * size_of(type)),
          count_(count),
          type_(type) {}

  protected:
    void finish(const std::vector<char>& all, void* out) const override { add_up(type_, all, ranks(), count_, out); }

  private:
    uint64_t count_;
    HcclDataType type_;
};

}  // namespace
}  // namespace sim

using sim::Communicator;
using sim::Fault;
using sim::guarded;

namespace {

HcclResult answer(int code) { return static_cast<HcclResult>(code); }

}  // namespace

extern "C" {

HcclResult HcclGetRootInfo(HcclRootInfo* info) {
    return answer(guarded("HcclGetRootInfo", [&] {
        const std::string name = sim::listen_somewhere();
        std::memset(info->internal, 0, sizeof info->internal);
        std::memcpy(info->internal, name.data(), name.size());
    }));
}

HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo* info, uint32_t rank, HcclComm* made) {
    return answer(guarded("HcclCommInitRootInfo", [&] {
        auto found = std::make_unique<Communicator>(Communicator{rank, size, info->internal, {}});
        if (rank == 0) {
            sim::accept_others(*found);
        } else {
            sim::connect_to_first(*found);
        }
        *made = found.release();
    }));
}
HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo* info, uint32_t rank, const HcclCommConfig*,
                                      HcclComm* made) {
    return HcclCommInitRootInfo(size, info, rank, made);
}
HcclResult HcclCommDestroy(HcclComm communicator) {
    delete static_cast<Communicator*>(communicator);
    return HCCL_SUCCESS;
}
HcclResult HcclGetCommName(HcclComm communicator, char* name) {
    std::strcpy(name, static_cast<Communicator*>(communicator)->name.c_str());
    return HCCL_SUCCESS;
}
HcclResult HcclGetCommAsyncError(HcclComm, HcclResult* error) {
    *error = HCCL_SUCCESS;
    return HCCL_SUCCESS;
}
uint32_t HcclGetCommConfigCapability() { return 0; }

HcclResult HcclAllReduce(void* own, void* out, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm communicator,
                         aclrtStream stream) {
    return answer(guarded("HcclAllReduce", [&] {
        if (op != HCCL_REDUCE_SUM) throw Fault(HCCL_E_NOT_SUPPORT, "only sums are modelled");
        // Every rank has as many: none needs to come.
        if (count == 0) return;
        auto* found = static_cast<Communicator*>(communicator);
        sim::device().launch(stream, std::make_shared<sim::Sum>(found, own, count, type, out));
    }));
}
HcclResult HcclAllGather(void* own, void* out, uint64_t count, HcclDataType type, HcclComm communicator,
                         aclrtStream stream) {
    return answer(guarded("HcclAllGather", [&] {
        if (count == 0) return;
        auto* found = static_cast<Communicator*>(communicator);
        const size_t bytes = count * sim::size_of(type);
        sim::device().launch(
            stream, std::make_shared<sim::Collective>("HcclAllGather", found, own, bytes, out, bytes * found->size));
    }));
}

}  // extern "C"
