// Replays traces of requests on the batching policy in simulated time, and prints every decision as a line of JSON.
//
// Standard input: a line with "options" starts a trace; lines with "submit", "cancel" or "drain" are its events in order of
// time. A batch takes the `actual` time of its size. At one instant batches end first, then events come, then time passes.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "policy/batch_policy.h"

namespace {

using namespace trunnion::bundle;
using nlohmann::json;

BatchingOptions read_options(const json& given) {
  BatchingOptions options;
  options.allowed = given.at("allowed").get<std::vector<int64_t>>();
  options.max_delay = given.at("max_delay");
  options.max_queue_rows = given.at("max_queue_rows");
  options.max_queue_delay = given.at("max_queue_delay");
  const std::string padding = given.at("padding"), oversize = given.at("oversize");
  options.padding = padding == "pad_up" ? Padding::kPadUp
                    : padding == "batch_down" ? Padding::kBatchDown
                                              : Padding::kLeastCost;
  options.oversize = oversize == "split" ? Oversize::kSplit : Oversize::kRefuse;
  options.bypass_rows = given.at("bypass_rows");
  options.num_priorities = given.at("num_priorities");
  options.num_runners = given.at("num_runners");
  options.latency = given.at("latency").get<std::vector<int64_t>>();
  return options;
}

Submission read_submission(const json& given) {
  Submission submission{.id = given.at("id"), .shape = given.at("shape"), .rows = given.at("rows"),
                        .priority = given.at("priority"), .deadline = kNever};
  if (!given.at("deadline").is_null()) submission.deadline = given.at("deadline");
  return submission;
}

class Replay {
 public:
  explicit Replay(const json& given)
      : options_(read_options(given.at("options"))),
        actual_(given.at("actual").get<std::vector<int64_t>>()),
        policy_(options_),
        ends_(static_cast<size_t>(options_.num_runners), kNever) {}

  void event(const json& line) {
    const Micros time = line.at("t");
    run_until(time);
    Actions actions;
    if (line.contains("submit")) {
      const Submission submission = read_submission(line.at("submit"));
      const auto refusal = policy_.submit(time, submission, actions);
      print_expired(time, actions);
      if (refusal) std::cout << json{{"t", time}, {"refused", {submission.id, name_of(*refusal)}}} << "\n";
    } else if (line.contains("cancel")) {
      const uint64_t id = line.at("cancel");
      const bool was_queued = policy_.cancel(time, id, actions);
      print_expired(time, actions);
      std::cout << json{{"t", time}, {"cancelled", {id, was_queued}}} << "\n";
    } else {
      policy_.drain(time, actions);
      print_expired(time, actions);
    }
    start(time, actions);
    json oldest = json::array();
    for (const auto& [priority, arrival] : policy_.oldest_arrivals()) oldest.push_back({priority, arrival});
    std::cout << json{{"t", time}, {"oldest", oldest}} << "\n";
  }

  void end() {
    run_until(kNever);
    std::cout << json{{"end", policy_.queued_rows()}} << "\n";
  }

 private:
  // All that happens before the events at `limit`; batches that end then are before them too.
  void run_until(Micros limit) {
    for (;;) {
      const auto first = std::min_element(ends_.begin(), ends_.end());
      const Micros wake = std::max(now_, policy_.next_wake(now_));
      const Micros next = std::min(*first, wake);
      if (next == kNever || next > limit || (next == limit && *first != next)) return;
      now_ = next;
      Actions actions;
      if (*first == next) {
        *first = kNever;
        policy_.finish(next, static_cast<int32_t>(first - ends_.begin()), actions);
      } else {
        policy_.advance(next, actions);
      }
      print_expired(next, actions);
      start(next, actions);
    }
  }

  void print_expired(Micros time, const Actions& actions) {
    for (const uint64_t id : actions.expired) std::cout << json{{"t", time}, {"expired", id}} << "\n";
  }

  void start(Micros time, const Actions& actions) {
    now_ = time;
    for (const Batch& batch : actions.batches) {
      json parts = json::array();
      for (const Part& part : batch.parts) parts.push_back({part.id, part.first, part.rows});
      std::cout << json{{"t", time},
                        {"run", {batch.runner, batch.shape, batch.size, batch.rows, name_of(batch.reason), parts}}}
                << "\n";
      const auto index = std::find(options_.allowed.begin(), options_.allowed.end(), batch.size);
      ends_[static_cast<size_t>(batch.runner)] = time + actual_[static_cast<size_t>(index - options_.allowed.begin())];
    }
  }

  const BatchingOptions options_;
  const std::vector<int64_t> actual_;
  BatchPolicy policy_;
  std::vector<Micros> ends_;  // when the batch of a runner ends
  Micros now_ = 0;
};

}  // namespace

int main() {
  std::optional<Replay> replay;
  for (std::string line; std::getline(std::cin, line);) {
    const json given = json::parse(line);
    if (given.contains("options")) {
      if (replay) replay->end();
      replay.emplace(given);
    } else {
      replay->event(given);
    }
  }
  if (replay) replay->end();
}
