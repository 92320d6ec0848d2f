// Writes requests as they come to a file, for `trunnion-bench-bundle --shadow` to ask again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <span>

#include "request/admission.h"

namespace trunnion::bundle {

struct Call;

// Of the first `limit` requests each one message ModelInferRequest, behind its length as a varint.
class Recorder {
 public:
  // Throws std::runtime_error if the file cannot be written.
  Recorder(const std::filesystem::path& path, int64_t limit);

  // By any thread.
  void add(const Call& call, std::span<const WireTensor> inputs);

 private:
  std::mutex mutex_;
  std::ofstream file_;
  int64_t left_;
};

}  // namespace trunnion::bundle
