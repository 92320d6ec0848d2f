// Writes requests as they come to a file, for `trunnion-bench-bundle --shadow` to ask again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <span>
#include <string>

#include "request/admission.h"

namespace trunnion::bundle {

struct Call;

// Of the first `limit` requests each one message ModelInferRequest, behind its length as a varint.
class Recorder {
 public:
  // Throws std::runtime_error if the file cannot be made. `log` is told if it cannot be written later.
  Recorder(const std::filesystem::path& path, int64_t limit, std::function<void(const std::string&)> log);

  // By any thread. Nothing more is recorded once writing has failed.
  void add(const Call& call, std::span<const WireTensor> inputs);

 private:
  const std::filesystem::path path_;
  const std::function<void(const std::string&)> log_;
  std::mutex mutex_;
  std::ofstream file_;
  int64_t left_;
};

}  // namespace trunnion::bundle
