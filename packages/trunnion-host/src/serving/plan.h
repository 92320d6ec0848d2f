// One step before it runs: its entries, and its inputs in one of the lent buffer sets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "serving/images.h"
#include "serving/scheduler.h"
#include "trunnion/contract.h"

namespace trunnion::serving {

struct Plan {
  // A request that ended after the plan was made is null: its row runs, and what it returns is dropped.
  std::vector<BatchEntry> entries;
  trn_forward_batch batch{};
  // The images to encode, kept until the step has run even if their requests end.
  std::vector<std::shared_ptr<const Image>> images;
  std::vector<trn_encoder_item> encoder_items;
  // Made while the step before ran; rows that wait for a token of it still hold another.
  bool ahead = false;
  // When scheduling began, ended, and when the inputs were built; nanoseconds of CLOCK_MONOTONIC.
  int64_t schedule_ns = 0, build_ns = 0, ready_ns = 0;

  // Hand the images of `entries` to `batch`.
  void add_images() {
    images.clear();
    encoder_items.clear();
    for (const BatchEntry& entry : entries) {
      if (entry.encodes < 0) continue;
      const ImageSpan& span = entry.request->images.spans[static_cast<size_t>(entry.encodes)];
      const Image& image = *images.emplace_back(span.image);
      encoder_items.push_back(
          {&image.view, {image.grid[0], image.grid[1], image.grid[2]}, span.first_row, span.num_tokens});
    }
    batch.num_encoder_items = static_cast<int32_t>(encoder_items.size());
    batch.encoder_items = encoder_items.data();
  }

  bool worth_running() const {
    return std::any_of(entries.begin(), entries.end(), [](const BatchEntry& entry) { return entry.request != nullptr; });
  }
  int64_t num_dropped_rows() const {
    return std::count_if(entries.begin(), entries.end(), [](const BatchEntry& entry) { return entry.request == nullptr; });
  }
  void forget(const Request& request) {
    for (BatchEntry& entry : entries) {
      if (entry.request == &request) entry.request = nullptr;
    }
  }
};

}  // namespace trunnion::serving
