// aclmdlRI*: see "15 model running instance management" and "task update" in the documents of CANN's runtime
// (github.com/hicann/runtime, docs/zh/api_ref and docs/zh/dev_guide), from which rules and codes are taken.
#include "capture.h"

#include <algorithm>
#include <set>

#include "counters.h"
#include "errors.h"

namespace sim {

namespace {

thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

std::set<Model*>& models() {
    static std::set<Model*>& found = *new std::set<Model*>;
    return found;
}

Model* model_of(aclmdlRI handle) {
    auto* model = static_cast<Model*>(handle);
    if (models().count(model) == 0) throw Fault(ACL_ERROR_RT_PARAM_INVALID, "there is no such graph");
    return model;
}

// Runs the tasks of a model from the first; where one is blocked, the stream is.
class Replay : public Task {
  public:
    explicit Replay(Model* model) : Task("replay"), model_(model) { model_->running += 1; }
    ~Replay() override {
        if (models().count(model_) != 0) model_->running -= 1;
    }

    bool advance() override {
        while (next_ < model_->tasks.size()) {
            const std::shared_ptr<Task> task = model_->tasks[next_];
            if (!task->advance()) return false;
            next_ += 1;
        }
        return true;
    }
    bool is_ready() const override { return blocked() == nullptr || blocked()->is_ready(); }
    const void* waits_on() const override { return blocked() == nullptr ? nullptr : blocked()->waits_on(); }
    std::string waiting() const override { return blocked() == nullptr ? name : blocked()->waiting(); }
    bool signals(const void* what) const override {
        return std::any_of(model_->tasks.begin() + static_cast<std::ptrdiff_t>(next_), model_->tasks.end(),
                           [&](const auto& task) { return task->signals(what); });
    }

  private:
    const Task* blocked() const { return next_ < model_->tasks.size() ? model_->tasks[next_].get() : nullptr; }

    Model* model_;
    size_t next_ = 0;
};

class Update : public Task {
  public:
    Update(Group* group, std::vector<std::shared_ptr<Task>> tasks)
        : Task("task update"), group_(group), tasks_(std::move(tasks)) {}

    bool advance() override {
        for (size_t index = 0; index < tasks_.size(); ++index) {
            group_->model->tasks[group_->places[index]] = tasks_[index];
        }
        counters().updates += 1;
        return true;
    }

  private:
    Group* group_;
    std::vector<std::shared_ptr<Task>> tasks_;
};

std::string names(const std::vector<std::shared_ptr<Task>>& tasks) {
    std::string found;
    for (const auto& task : tasks) found += (found.empty() ? "" : ", ") + task->name;
    return found.empty() ? "none" : found;
}

void begin(Stream* stream, aclmdlRICaptureMode mode) {
    if (stream == device().stream(nullptr)) {
        throw Fault(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "the default stream cannot be captured");
    }
    if (stream->capture != nullptr) throw Fault(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is being captured");
    auto* model = new Model;
    model->origin = stream;
    model->mode = mode;
    models().insert(model);
    stream->capture = model;
    stream->captured = 0;
    device().captures.push_back(model);
}

Model* end(Stream* stream) {
    Model* model = stream->capture;
    if (model == nullptr) throw Fault(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream is not being captured");
    if (model->origin != stream) {
        throw Fault(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "a capture ends on the stream that it began on");
    }
    auto& captures = device().captures;
    std::erase(captures, model);
    stream->capture = nullptr;
    bool has_stray = false;
    for (const auto& [joined, waited_for] : model->joined) {
        has_stray |= joined->captured > waited_for;
        joined->capture = nullptr;
    }
    if (has_stray) {
        throw Fault(ACL_ERROR_RT_STREAM_UNJOINED, "a stream joined the capture and its last task is waited for by nobody");
    }
    if (model->open_group != nullptr) {
        throw Fault(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "a task group was begun and not ended");
    }
    return model;
}

void begin_group(Stream* stream) {
    Model* model = stream->capture;
    if (model == nullptr) throw Fault(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "a task group is part of a capture");
    if (model->open_group != nullptr) {
        throw Fault(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "a task group is open already");
    }
    Group& group = model->groups.emplace_back();
    group.model = model;
    group.stream = stream;
    model->open_group = &group;
}

Group* end_group(Stream* stream) {
    Model* model = stream->capture;
    if (model == nullptr) throw Fault(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "a task group is part of a capture");
    Group* group = model->open_group;
    if (group == nullptr || group->stream != stream) {
        throw Fault(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no task group was begun on this stream");
    }
    model->open_group = nullptr;
    return group;
}

bool is_group(const Group* group) {
    for (const Model* model : models()) {
        for (const Group& candidate : model->groups) {
            if (&candidate == group) return true;
        }
    }
    return false;
}

void begin_update(Stream* stream, Group* group) {
    if (stream->capture != nullptr) throw Fault(ACL_ERROR_RT_STREAM_CAPTURED, "an update's stream is being captured");
    if (stream->updating != nullptr) {
        throw Fault(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "an update was begun on this stream and not ended");
    }
    if (!is_group(group)) throw Fault(ACL_ERROR_RT_PARAM_INVALID, "there is no such task group");
    stream->updating = group;
    stream->update.clear();
}

// An update of no task leaves the group as it is.
void end_update(Stream* stream) {
    Group* group = stream->updating;
    if (group == nullptr) throw Fault(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no update was begun on this stream");
    stream->updating = nullptr;
    std::vector<std::shared_ptr<Task>> tasks = std::move(stream->update);
    stream->update.clear();
    if (tasks.empty()) return;
    std::vector<std::shared_ptr<Task>> captured;
    for (const size_t place : group->places) captured.push_back(group->model->tasks[place]);
    if (names(tasks) != names(captured)) {
        throw Fault(ACL_ERROR_STREAM_TASK_GROUP_STATUS,
                    "the group was captured with: " + names(captured) + "; the update has: " + names(tasks));
    }
    device().enqueue(stream, std::make_shared<Update>(group, std::move(tasks)));
}

}  // namespace

void add_to_capture(Stream& stream, std::shared_ptr<Task> task) {
    Model& model = *stream.capture;
    if (Group* group = model.open_group; group != nullptr) {
        if (group->stream != &stream) {
            throw Fault(ACL_ERROR_STREAM_TASK_GROUP_INTR, task->name + " on another stream while a task group is open");
        }
        if (!task->is_operator()) {
            throw Fault(ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT, task->name + " in a task group: it takes operators only");
        }
        group->places.push_back(model.tasks.size());
    }
    stream.captured += 1;
    model.tasks.push_back(std::move(task));
}

void add_to_update(Stream& stream, std::shared_ptr<Task> task) {
    if (!task->is_operator()) {
        throw Fault(ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT, task->name + " in a task update: it takes operators only");
    }
    stream.update.push_back(std::move(task));
}

void record_in_capture(Stream& stream, Event& event) {
    event.capture = stream.capture;
    event.covers = {{&stream, stream.captured}};
    for (const auto& [joined, waited_for] : stream.capture->joined) event.covers.emplace_back(joined, waited_for);
}

void join_capture(Stream& stream, Event& event) {
    Model* model = capture_of(event);
    if (stream.capture == nullptr) {
        if (&stream == device().stream(nullptr)) {
            throw Fault(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "the default stream cannot join a capture");
        }
        stream.capture = model;
        stream.captured = 0;
        model->joined[&stream] = 0;
    }
    if (stream.capture != model) {
        throw Fault(ACL_ERROR_STREAM_CAPTURE_CONFLICT, "the event belongs to another capture than the stream");
    }
    if (&stream != model->origin) return;
    for (const auto& [covered, reached] : event.covers) {
        if (covered != model->origin) model->joined[covered] = std::max(model->joined[covered], reached);
    }
}

Model* capture_of(const Event& event) {
    for (Model* model : device().captures) {
        if (model == event.capture) return model;
    }
    return nullptr;
}

bool is_relaxed() {
    if (thread_mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED) return true;
    for (const Model* model : device().captures) {
        if (model->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED) return false;
    }
    return true;
}

}  // namespace sim

using sim::device;
using sim::guarded;

extern "C" {

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode) {
    return guarded("aclmdlRICaptureBegin", [&] { sim::begin(device().stream(stream), mode); });
}
aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI* model) {
    return guarded("aclmdlRICaptureEnd", [&] { *model = sim::end(device().stream(stream)); });
}
aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status, aclmdlRI* model) {
    return guarded("aclmdlRICaptureGetInfo", [&] {
        sim::Model* found = device().stream(stream)->capture;
        *status = found == nullptr ? ACL_MODEL_RI_CAPTURE_STATUS_NONE : ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
        if (model != nullptr) *model = found;
    });
}
aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
    std::swap(*mode, sim::thread_mode);
    return ACL_SUCCESS;
}
aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream) {
    return guarded("aclmdlRIExecuteAsync", [&] {
        sim::Model* found = sim::model_of(model);
        sim::Stream* on = device().stream(stream);
        if (on->capture != nullptr) throw sim::Fault(ACL_ERROR_RT_STREAM_CAPTURED, "a replay cannot be captured");
        sim::counters().replays += 1;
        device().enqueue(on, std::make_shared<sim::Replay>(found));
    });
}
aclError aclmdlRIDestroy(aclmdlRI model) {
    return guarded("aclmdlRIDestroy", [&] {
        sim::Model* found = sim::model_of(model);
        if (found->running > 0) throw sim::Fault(ACL_ERROR_RT_MODEL_RUNNING, "the graph is running");
        sim::models().erase(found);
        delete found;
    });
}
aclError aclmdlRIDebugPrint(aclmdlRI) { return ACL_SUCCESS; }
aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream) {
    return guarded("aclmdlRICaptureTaskGrpBegin", [&] { sim::begin_group(device().stream(stream)); });
}
aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp* handle) {
    return guarded("aclmdlRICaptureTaskGrpEnd", [&] { *handle = sim::end_group(device().stream(stream)); });
}
aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp handle) {
    return guarded("aclmdlRICaptureTaskUpdateBegin", [&] {
        sim::begin_update(device().stream(stream), static_cast<sim::Group*>(handle));
    });
}
aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream) {
    return guarded("aclmdlRICaptureTaskUpdateEnd", [&] { sim::end_update(device().stream(stream)); });
}

}  // extern "C"
