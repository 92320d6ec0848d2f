// The one simulated device: streams are queues of tasks, and a task runs when its turn comes, or when somebody waits.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "errors.h"

namespace sim {

struct Event;
struct Group;
struct Model;
struct Stream;

// One piece of work. A task that is captured runs many times, so it keeps nothing of a run.
class Task {
  public:
    explicit Task(std::string name) : name(std::move(name)) {}
    virtual ~Task() = default;
    // Does the work, or says that it is blocked.
    virtual bool advance() = 0;
    // For a task that can be blocked: whether it still is, on what, and how that is called in an error.
    virtual bool is_ready() const { return true; }
    virtual const void* waits_on() const { return nullptr; }
    virtual std::string waiting() const { return name; }
    // Whether it is what a task that waits on that waits for.
    virtual bool signals(const void*) const { return false; }
    // Whether it is an operator's kernel: only those may be in a task group.
    virtual bool is_operator() const { return false; }

    const std::string name;
};

class Copy : public Task {
  public:
    Copy(void* target, const void* source, size_t bytes)
        : Task("memcpy"), target_(target), source_(source), bytes_(bytes) {}
    bool advance() override;

  private:
    void* target_;
    const void* source_;
    size_t bytes_;
};

class Fill : public Task {
  public:
    Fill(void* target, int value, size_t bytes) : Task("memset"), target_(target), value_(value), bytes_(bytes) {}
    bool advance() override;

  private:
    void* target_;
    int value_;
    size_t bytes_;
};

class HostFunction : public Task {
  public:
    HostFunction(void (*function)(void*), void* data) : Task("host function"), function_(function), data_(data) {}
    bool advance() override;

  private:
    void (*function_)(void*);
    void* data_;
};

struct Event {
    int id = 0;
    // Records asked for, and the last of them that was reached.
    uint64_t asked = 0;
    uint64_t reached = 0;
    double reached_ms = 0;
    // The capture that recorded it, and how far each of its streams had come.
    Model* capture = nullptr;
    std::vector<std::pair<Stream*, uint64_t>> covers;
};

struct Stream {
    int id = 0;
    // Work waits here until somebody waits for it.
    bool is_held = false;
    std::deque<std::shared_ptr<Task>> queue;
    // The capture it takes part in, and tasks that it has put there.
    Model* capture = nullptr;
    uint64_t captured = 0;
    // The update that is being described on it.
    Group* updating = nullptr;
    std::vector<std::shared_ptr<Task>> update;
};

class Device {
  public:
    // Null is the default stream.
    Stream* stream(aclrtStream handle);
    Stream* create_stream();
    void destroy_stream(aclrtStream handle);
    Event* create_event();

    // Puts a task where its stream is: in a queue, in a capture or in an update.
    void launch(aclrtStream handle, std::shared_ptr<Task> task);
    // Puts a task in a queue, and runs what can run.
    void enqueue(Stream* stream, std::shared_ptr<Task> task);

    // Runs what these waits need, held or not, and nothing else.
    void wait_for(Stream* stream);
    void wait_for(Event* event);
    void wait_for_all();

    // For callers whose caller drops what they return: whoever waits next is told.
    void fail_later(int code, const std::string& why);

    // While nothing else is held, all streams are.
    void hold_all(bool wanted);
    void hold(Stream* stream, bool wanted);

    // What the function asks of the device is done before it goes on.
    void in_host_function(const std::function<void()>& function);

    // Captures that are under way.
    std::vector<Model*> captures;
    void refuse_in_capture(const std::string& what) const;

  private:
    bool run(Stream* stream);
    void raise_failed();
    void run_what_can();
    void drain(Stream* stream, const Task* until);
    void drain_for(const Task& blocked);

    std::list<Stream> streams_;
    // Those whose tasks somebody waits for now.
    std::set<const Stream*> draining_;
    int streams_made_ = 0;
    int events_made_ = 0;
    bool is_late_ = false;
    bool is_running_ = false;
    bool in_host_function_ = false;
    std::unique_ptr<Fault> failed_;
};

Device& device();

}  // namespace sim
