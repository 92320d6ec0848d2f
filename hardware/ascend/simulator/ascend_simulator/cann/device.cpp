// The order in which work runs: at once where it can, held where a test asks for that, and never before its events.
#include "device.h"

#include <algorithm>
#include <cstring>

#include "capture.h"
#include "counters.h"
#include "errors.h"
#include "events.h"

namespace sim {

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
    device().in_host_function([&] { function_(data_); });
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

Event* Device::create_event() {
    auto* made = new Event;
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
    if (in_host_function_) {
        // A device refuses it; a test's function may look at memory by operators, and its stream stands still meanwhile.
        if (!task->advance()) throw Fault(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, task->name + " in a host function would wait");
        return;
    }
    stream->queue.push_back(std::move(task));
    run_what_can();
}

void Device::in_host_function(const std::function<void()>& function) {
    struct Within {
        explicit Within(bool& flag) : flag(flag) { flag = true; }
        ~Within() { flag = false; }
        bool& flag;
    } within(in_host_function_);
    function();
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
    // Not from within a task.
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

void Device::fail_later(int code, const std::string& why) {
    if (failed_ == nullptr) failed_ = std::make_unique<Fault>(code, why);
}

void Device::raise_failed() {
    const std::unique_ptr<Fault> failed = std::move(failed_);
    if (failed != nullptr) throw Fault(*failed);
}

void Device::wait_for(Stream* stream) {
    drain(stream, nullptr);
    run_what_can();
    raise_failed();
}

void Device::wait_for(Event* event) {
    const Wait wait(event, event->asked);
    if (!wait.is_ready()) drain_for(wait);
    run_what_can();
    raise_failed();
}

void Device::wait_for_all() {
    for (Stream& stream : streams_) drain(&stream, nullptr);
    raise_failed();
}

// Runs a stream until it is empty, or until `until` is no longer blocked.
void Device::drain(Stream* stream, const Task* until) {
    // A stream that waits for itself is not helped by what comes after.
    if (!draining_.insert(stream).second) return;
    struct Drained {
        ~Drained() { all.erase(stream); }
        std::set<const Stream*>& all;
        const Stream* stream;
    } drained{draining_, stream};
    while (!stream->queue.empty() && (until == nullptr || !until->is_ready())) {
        if (run(stream)) continue;
        const std::shared_ptr<Task> blocked = stream->queue.front();
        drain_for(*blocked);
    }
}

// Runs the streams on which there is what a task waits for, until it is there.
void Device::drain_for(const Task& blocked) {
    const void* awaited = blocked.waits_on();
    for (Stream& stream : streams_) {
        if (blocked.is_ready()) return;
        const bool signals = std::any_of(stream.queue.begin(), stream.queue.end(),
                                         [&](const auto& task) { return task->signals(awaited); });
        if (signals) drain(&stream, &blocked);
    }
    if (!blocked.is_ready()) {
        throw Fault(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
                    "work waits for " + blocked.waiting() + ", which no stream is about to give");
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
