// The order in which work runs: at once where it can, held where a test asks for that, and never before its events.
#include "device.h"

#include <cstring>

#include "capture.h"
#include "counters.h"
#include "errors.h"
#include "events.h"

namespace sim {

namespace {
// Streams that wait for each other: far more than there can be.
constexpr int MAX_DEPTH = 64;
}  // namespace

Counters& counters() {
    static Counters found;
    return found;
}

Device& device() {
    static Device& found = *new Device;
    return found;
}

bool Copy::advance() {
    if (bytes_ != 0) std::memmove(target_, source_, bytes_);
    return true;
}

bool Fill::advance() {
    std::memset(target_, value_, bytes_);
    return true;
}

bool HostFunction::advance() {
    function_(data_);
    return true;
}

Stream* Device::stream(aclrtStream handle) {
    if (handle == nullptr) {
        if (streams_.empty()) create_stream();
        return &streams_.front();
    }
    for (Stream& stream : streams_) {
        if (&stream == handle) return &stream;
    }
    throw Fault(ACL_ERROR_RT_STREAM_CONTEXT, "there is no such stream");
}

Stream* Device::create_stream() {
    Stream& made = streams_.emplace_back();
    made.id = streams_made_++;
    made.is_held = is_late_;
    return &made;
}

void Device::destroy_stream(aclrtStream handle) {
    Stream* found = stream(handle);
    if (found->capture != nullptr) throw Fault(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is being captured");
    wait_for(found);
    streams_.remove_if([&](const Stream& candidate) { return &candidate == found; });
}

Event* Device::create_event(uint32_t flags) {
    auto* made = new Event;
    made->flags = flags;
    made->id = events_made_++;
    return made;
}

void Device::launch(aclrtStream handle, std::shared_ptr<Task> task) {
    Stream* found = stream(handle);
    counters().launches += 1;
    if (found->updating != nullptr) {
        add_to_update(*found, std::move(task));
    } else if (found->capture != nullptr) {
        add_to_capture(*found, std::move(task));
    } else {
        enqueue(found, std::move(task));
    }
}

void Device::enqueue(Stream* stream, std::shared_ptr<Task> task) {
    stream->queue.push_back(std::move(task));
    run_what_can();
}

// True if the first task of the stream was done.
bool Device::run(Stream* stream) {
    if (stream->queue.empty()) return false;
    const std::shared_ptr<Task> task = stream->queue.front();
    bool is_done = false;
    try {
        is_done = task->advance();
    } catch (const Fault&) {
        stream->queue.pop_front();
        throw;
    }
    if (is_done) stream->queue.pop_front();
    return is_done;
}

void Device::run_what_can() {
    // What a host function launches has its turn when that function has returned.
    if (is_running_) return;
    struct Running {
        explicit Running(bool& flag) : flag(flag) { flag = true; }
        ~Running() { flag = false; }
        bool& flag;
    } running(is_running_);
    for (bool any = true; any;) {
        any = false;
        for (Stream& stream : streams_) {
            while (!stream.is_held && run(&stream)) any = true;
        }
    }
}

void Device::wait_for(Stream* stream) {
    drain(stream, nullptr, 0, 0);
    run_what_can();
}

void Device::wait_for(const Event* event) {
    drain_to_record(event, event->asked, 0);
    run_what_can();
}

void Device::wait_for_all() {
    for (Stream& stream : streams_) drain(&stream, nullptr, 0, 0);
}

// Runs a stream until it is empty, or until `until` has reached that record.
void Device::drain(Stream* stream, const Event* until, uint64_t record, int depth) {
    while (!stream->queue.empty() && (until == nullptr || !has_reached(*until, record))) {
        if (run(stream)) continue;
        const Task& blocked = *stream->queue.front();
        const Event* event = blocked.awaited();
        if (event == nullptr) throw Fault(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, blocked.name + " does not end");
        drain_to_record(event, blocked.awaited_record(), depth);
    }
}

void Device::drain_to_record(const Event* event, uint64_t record, int depth) {
    for (Stream& stream : streams_) {
        if (has_reached(*event, record)) return;
        if (depth < MAX_DEPTH && will_record(stream, *event)) drain(&stream, event, record, depth + 1);
    }
    if (!has_reached(*event, record)) {
        throw Fault(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "work waits for event " + std::to_string(event->id) +
                                                          (event->is_external() ? " (external)" : "") +
                                                          ", which no stream is about to record");
    }
}

void Device::hold_all(bool wanted) {
    is_late_ = wanted;
    for (Stream& stream : streams_) stream.is_held = wanted;
    if (!wanted) run_what_can();
}

void Device::hold(Stream* stream, bool wanted) {
    stream->is_held = wanted;
    if (!wanted) run_what_can();
}

void Device::refuse_in_capture(const std::string& what) const {
    if (!captures.empty() && !is_relaxed()) {
        throw Fault(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, what + " is not allowed while a graph is captured");
    }
}

}  // namespace sim
