// Streams, events and the host's waits, as acl's interface has them.
#include "events.h"

#include <chrono>

#include "capture.h"
#include "counters.h"
#include "errors.h"
#include "memory.h"

namespace sim {

namespace {

double now_ms() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The host may not wait for what a capture only notes, nor ask how far it is.
void refuse_captured(const Stream& stream) {
    if (stream.capture != nullptr) {
        throw Fault(ACL_ERROR_RT_STREAM_CAPTURED, "waiting for a stream is not allowed while it is captured");
    }
}

void refuse_captured(const Event& event) {
    if (capture_of(event) != nullptr) {
        throw Fault(ACL_ERROR_RT_EVENT_CAPTURED, "waiting for an event is not allowed while its stream is captured");
    }
}

Event* event_of(aclrtEvent handle) {
    if (handle == nullptr) throw Fault(ACL_ERROR_RT_PARAM_INVALID, "there is no event");
    return static_cast<Event*>(handle);
}

void record(aclrtEvent handle, aclrtStream stream_handle) {
    Event* event = event_of(handle);
    Stream* stream = device().stream(stream_handle);
    if (stream->capture != nullptr) {
        record_in_capture(*stream, *event);
        return;
    }
    event->capture = nullptr;
    event->asked += 1;
    device().launch(stream, std::make_shared<Record>(event, event->asked));
}

void wait(aclrtStream stream_handle, aclrtEvent handle) {
    Event* event = event_of(handle);
    Stream* stream = device().stream(stream_handle);
    if (capture_of(*event) != nullptr) {
        join_capture(*stream, *event);
        return;
    }
    if (stream->capture != nullptr) {
        throw Fault(ACL_ERROR_RT_CAPTURE_DEPENDENCY,
                    "a captured stream waits for event " + std::to_string(event->id) + " that the capture did not record");
    }
    device().launch(stream, std::make_shared<Wait>(event, event->asked));
}

uint64_t* word_of(void* address) {
    if (!is_device_memory(address, sizeof(uint64_t))) {
        throw Fault(ACL_ERROR_RT_PARAM_INVALID, "the address is not device memory");
    }
    return static_cast<uint64_t*>(address);
}

}  // namespace

bool Record::advance() {
    event_->reached = record_;
    event_->reached_ms = now_ms();
    return true;
}

bool ValueWrite::advance() {
    *word_ = value_;
    return true;
}

}  // namespace sim

using sim::device;
using sim::guarded;

extern "C" {

aclError aclrtCreateStream(aclrtStream* stream) {
    return guarded("aclrtCreateStream", [&] { *stream = device().create_stream(); });
}
aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) { return aclrtCreateStream(stream); }
aclError aclrtDestroyStream(aclrtStream stream) {
    return guarded("aclrtDestroyStream", [&] { device().destroy_stream(stream); });
}
aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }
aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
    return guarded("aclrtStreamGetId", [&] { *id = device().stream(stream)->id; });
}
aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_SUCCESS; }
aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* flag) {
    *flag = 0;
    return ACL_SUCCESS;
}
aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) { return ACL_SUCCESS; }

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
    return guarded("aclrtStreamQuery", [&] {
        const sim::Stream& found = *device().stream(stream);
        sim::refuse_captured(found);
        *status = found.queue.empty() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    });
}
aclError aclrtSynchronizeStream(aclrtStream stream) {
    return guarded("aclrtSynchronizeStream", [&] {
        sim::Stream* found = device().stream(stream);
        sim::counters().waits += 1;
        sim::refuse_captured(*found);
        device().wait_for(found);
    });
}
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) { return aclrtSynchronizeStream(stream); }
aclError aclrtSynchronizeDevice() {
    return guarded("aclrtSynchronizeDevice", [&] {
        sim::counters().waits += 1;
        device().refuse_in_capture("waiting for the device");
        device().wait_for_all();
    });
}
aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return aclrtSynchronizeDevice(); }

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) {
    return guarded("aclrtCreateEventWithFlag", [&] {
        if ((flag & (ACL_EVENT_EXTERNAL | ACL_EVENT_IPC)) != 0) {
            throw sim::Fault(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "events of flags " + std::to_string(flag) + " are not modelled");
        }
        *event = device().create_event();
    });
}
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag) { return aclrtCreateEventWithFlag(event, flag); }
aclError aclrtCreateEvent(aclrtEvent* event) { return aclrtCreateEventWithFlag(event, 0); }
// Tasks in queues and graphs may know it still: an event is small, and stays.
aclError aclrtDestroyEvent(aclrtEvent) { return ACL_SUCCESS; }
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
    return guarded("aclrtRecordEvent", [&] { sim::record(event, stream); });
}
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
    return guarded("aclrtStreamWaitEvent", [&] { sim::wait(stream, event); });
}
aclError aclrtValueWrite(void* address, uint64_t value, uint32_t, aclrtStream stream) {
    return guarded("aclrtValueWrite", [&] {
        device().launch(stream, std::make_shared<sim::ValueWrite>(sim::word_of(address), value));
    });
}
aclError aclrtValueWait(void* address, uint64_t value, uint32_t comparison, aclrtStream stream) {
    return guarded("aclrtValueWait", [&] {
        if (comparison != ACL_STREAM_WAIT_VALUE_EQ) {
            throw sim::Fault(ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                             "comparison " + std::to_string(comparison) + " is not modelled, only equality");
        }
        device().launch(stream, std::make_shared<sim::ValueWait>(sim::word_of(address), value));
    });
}
aclError aclrtSynchronizeEvent(aclrtEvent event) {
    return guarded("aclrtSynchronizeEvent", [&] {
        sim::Event* found = sim::event_of(event);
        sim::counters().waits += 1;
        sim::refuse_captured(*found);
        device().wait_for(found);
    });
}
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
    return guarded("aclrtQueryEventStatus", [&] {
        const sim::Event& found = *sim::event_of(event);
        sim::refuse_captured(found);
        *status = found.reached >= found.asked ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                                       : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    });
}
aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
    return guarded("aclrtQueryEventWaitStatus", [&] {
        const sim::Event& found = *sim::event_of(event);
        *status = found.reached >= found.asked ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
    });
}
aclError aclrtEventElapsedTime(float* ms, aclrtEvent first, aclrtEvent second) {
    return guarded("aclrtEventElapsedTime", [&] {
        *ms = static_cast<float>(sim::event_of(second)->reached_ms - sim::event_of(first)->reached_ms);
    });
}
aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
    return guarded("aclrtEventGetTimestamp", [&] {
        *microseconds = static_cast<uint64_t>(sim::event_of(event)->reached_ms * 1000);
    });
}

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* data) {
    return guarded("aclrtLaunchHostFunc", [&] {
        device().launch(stream, std::make_shared<sim::HostFunction>(function, data));
    });
}

// For tests: work of one stream, or of all, waits until somebody waits for it.
int sim_hold(aclrtStream stream, int wanted) {
    return guarded("sim_hold", [&] { device().hold(device().stream(stream), wanted != 0); });
}
int sim_hold_all(int wanted) {
    return guarded("sim_hold_all", [&] { device().hold_all(wanted != 0); });
}
int64_t sim_count(const char* name) {
    const sim::Counters& found = sim::counters();
    const std::string wanted = name;
    if (wanted == "device_allocations") return found.device_allocations;
    if (wanted == "launches") return found.launches;
    if (wanted == "replays") return found.replays;
    if (wanted == "updates") return found.updates;
    if (wanted == "waits") return found.waits;
    return -1;
}

}  // extern "C"
