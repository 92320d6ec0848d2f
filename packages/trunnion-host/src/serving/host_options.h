// The options of a host, checked once and owned: nothing points into the caller's memory afterwards.
#pragma once

#include <cstdint>
#include <forward_list>
#include <string>
#include <vector>

#include "trunnion/serving.h"

namespace trunnion::serving {

struct HostOptions {
  // std::invalid_argument names the option at fault.
  explicit HostOptions(const trn_host_options& options);
  HostOptions(const HostOptions&) = delete;
  HostOptions& operator=(const HostOptions&) = delete;

  int32_t queue_size;
  bool prefix_caching, exit_on_fatal, overlap;
  double watchdog_s;
  std::vector<int32_t> num_blocks;  // per group, or empty
  int32_t kv_blocks;
  int64_t kv_bytes;
  std::string trace_file;           // or empty
  trn_kv_events_of kv_events_of;    // or nullptr
  void* kv_events_context;
  int32_t num_drafts;               // per request and step; 0 = no draft model
  int32_t prefix_levels;            // tokens that a step must save; 0 = never
  trn_create_options executor;      // its texts are owned

 private:
  void own_texts();
  void read_drafts();
  std::forward_list<std::string> texts_;  // what executor's point to
};

}  // namespace trunnion::serving
