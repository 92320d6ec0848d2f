// The load tool's command line.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trunnion::bundle {

struct BenchOptions {
  std::string server;  // HOST:PORT of gRPC
  std::string model;
  std::filesystem::path request;  // a golden or warm-up file of the bundle
  std::vector<int64_t> rows{1, 16, 128};
  std::vector<int64_t> concurrency{1, 4, 16, 64};  // calls in flight in the closed loop
  std::vector<int64_t> rates;                      // requests per second in the open loop, instead
  double seconds = 4, warmup_seconds = 1;
  double p99_ms = 20;
  int channels = 4;
  int64_t server_pid = 0;  // whose processor time is counted; 0 = nobody's
  std::filesystem::path json;
  // Instead of a load: requests of `recorded` are asked of `server` and of `shadow`, HOST:PORT too.
  std::string shadow;
  std::filesystem::path recorded, bundle;
};

// Throws std::invalid_argument. Prints the usage and exits for --help.
BenchOptions read_bench_options(int count, char** arguments);

}  // namespace trunnion::bundle
