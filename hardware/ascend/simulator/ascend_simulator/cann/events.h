// Tasks that mark events and wait for them.
#pragma once

#include "device.h"

namespace sim {

// Whether the event has come as far as that record of it; for an external event, whether it is set.
bool has_reached(const Event& event, uint64_t record);
// Whether a task that is queued on the stream will record the event.
bool will_record(const Stream& stream, const Event& event);

class Record : public Task {
  public:
    Record(Event* event, uint64_t record) : Task("event record"), event(event), record_(record) {}
    bool advance() override;

    Event* const event;

  private:
    uint64_t record_;
};

class Wait : public Task {
  public:
    Wait(Event* event, uint64_t record) : Task("event wait"), event_(event), record_(record) {}
    bool advance() override { return has_reached(*event_, record_); }
    const Event* awaited() const override { return event_; }
    uint64_t awaited_record() const override { return record_; }

  private:
    Event* event_;
    uint64_t record_;
};

class Reset : public Task {
  public:
    explicit Reset(Event* event) : Task("event reset"), event_(event) {}
    bool advance() override;

  private:
    Event* event_;
};

}  // namespace sim
