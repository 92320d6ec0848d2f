// Tasks that mark events, or write values to memory, and tasks that wait for them.
#pragma once

#include "device.h"

namespace sim {

class Record : public Task {
  public:
    Record(Event* event, uint64_t record) : Task("event record"), event_(event), record_(record) {}
    bool advance() override;
    bool signals(const void* what) const override { return what == event_; }

  private:
    Event* event_;
    uint64_t record_;
};

class Wait : public Task {
  public:
    Wait(Event* event, uint64_t record) : Task("event wait"), event_(event), record_(record) {}
    bool advance() override { return is_ready(); }
    bool is_ready() const override { return event_->reached >= record_; }
    const void* waits_on() const override { return event_; }
    std::string waiting() const override { return "event " + std::to_string(event_->id); }

  private:
    Event* event_;
    uint64_t record_;
};

// What torch_npu makes its external events of: a word of device memory.
class ValueWrite : public Task {
  public:
    ValueWrite(uint64_t* word, uint64_t value) : Task("value write"), word_(word), value_(value) {}
    bool advance() override;
    bool signals(const void* what) const override { return what == word_; }

  private:
    uint64_t* word_;
    uint64_t value_;
};

class ValueWait : public Task {
  public:
    ValueWait(const uint64_t* word, uint64_t value) : Task("value wait"), word_(word), value_(value) {}
    bool advance() override { return is_ready(); }
    bool is_ready() const override { return *word_ == value_; }
    const void* waits_on() const override { return word_; }
    std::string waiting() const override { return "an external event"; }

  private:
    const uint64_t* word_;
    uint64_t value_;
};

}  // namespace sim
