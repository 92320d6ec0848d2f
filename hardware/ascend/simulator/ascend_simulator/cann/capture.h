// Captures: tasks that are noted instead of run, groups of them, and updates that put others in their place.
#pragma once

#include <map>

#include "device.h"

namespace sim {

struct Group {
    Model* model = nullptr;
    Stream* stream = nullptr;
    // Where its tasks are in the model.
    std::vector<size_t> places;
};

// All streams of a capture in one sequence: what each of them was told, in the order of the calls.
struct Model {
    std::vector<std::shared_ptr<Task>> tasks;
    std::list<Group> groups;
    Group* open_group = nullptr;
    Stream* origin = nullptr;
    aclmdlRICaptureMode mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
    // Streams that joined through events -> tasks of theirs that the origin has waited for.
    std::map<Stream*, uint64_t> joined;
    int running = 0;
};

void add_to_capture(Stream& stream, std::shared_ptr<Task> task);
void add_to_update(Stream& stream, std::shared_ptr<Task> task);
void record_in_capture(Stream& stream, Event& event);
void join_capture(Stream& stream, Event& event);
// The capture under way that recorded the event, if there is one.
Model* capture_of(const Event& event);
// Whether the calling thread may do what captures forbid.
bool is_relaxed();

}  // namespace sim
