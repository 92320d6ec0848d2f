#include "bench/options.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>

#include "command_line/command_line.h"

namespace trunnion::bundle {
namespace {

constexpr const char* kUsage = R"(usage: trunnion-bench-bundle HOST:PORT --model NAME --request FILE [options]
       trunnion-bench-bundle HOST:PORT --shadow HOST:PORT --recorded FILE --bundle DIR [--json FILE]

Load a server of the Open Inference Protocol over gRPC with the rows of FILE, a golden or warm-up request of the bundle. Before each
run one answer is compared with the golden one, if FILE has it. An error of any call voids its run and the exit code is 1.

With --shadow the requests that a server recorded (its option --record) are asked of both, one after another, and the answers compared by
the tolerances of the bundle DIR; the first difference is printed, and the exit code is 1 if there is one.

  --rows LIST           rows of a request (1,16,128)
  --concurrency LIST    closed loop: as many calls in flight, each followed by the next (1,4,16,64)
  --rate LIST           open loop instead: requests per second, at random times (Poisson), latency from the time planned
  --seconds S           measured time of a run (4)
  --warmup-seconds S    before it (1)
  --p99-ms MS           the best rate is the highest whose 99th percentile is at most this (20)
  --channels N          connections (4)
  --server-pid PID      also count this process's processor time
  --json FILE           write all figures
)";

double number(const std::string& option, const std::string& text, double min, double max) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= min && value <= max)) {
    throw std::invalid_argument(option + " is " + text + ", expected a number from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

std::vector<int64_t> list(const std::string& option, const std::string& text) {
  std::vector<int64_t> values;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    int64_t value = 0;
    const auto [last, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || last != word.data() + word.size() || value < 1 || value > 10'000'000) {
      throw std::invalid_argument(option + " has \"" + word + "\", expected integers from 1, separated by commas");
    }
    values.push_back(value);
    begin = end + 1;
  }
  return values;
}

}  // namespace

BenchOptions read_bench_options(int count, char** arguments) {
  BenchOptions options;
  options.server = read_words(count, arguments, kUsage, {
      {"--model", [&](auto&, auto& text) { options.model = text; }},
      {"--request", [&](auto&, auto& text) { options.request = text; }},
      {"--rows", [&](auto& option, auto& text) { options.rows = list(option, text); }},
      {"--concurrency", [&](auto& option, auto& text) { options.concurrency = list(option, text); }},
      {"--rate", [&](auto& option, auto& text) { options.rates = list(option, text); }},
      {"--seconds", [&](auto& option, auto& text) { options.seconds = number(option, text, 0.01, 3600); }},
      {"--warmup-seconds", [&](auto& option, auto& text) { options.warmup_seconds = number(option, text, 0, 3600); }},
      {"--p99-ms", [&](auto& option, auto& text) { options.p99_ms = number(option, text, 0.001, 1e6); }},
      {"--channels", [&](auto& option, auto& text) { options.channels = static_cast<int>(number(option, text, 1, 256)); }},
      {"--server-pid", [&](auto& option, auto& text) { options.server_pid = static_cast<int64_t>(number(option, text, 1, 1e9)); }},
      {"--shadow", [&](auto&, auto& text) { options.shadow = text; }},
      {"--recorded", [&](auto&, auto& text) { options.recorded = text; }},
      {"--bundle", [&](auto&, auto& text) { options.bundle = text; }},
      {"--json", [&](auto&, auto& text) { options.json = text; }},
  });
  if (!options.shadow.empty()) {
    if (options.server.empty() || options.recorded.empty() || options.bundle.empty()) {
      throw std::invalid_argument("with --shadow, HOST:PORT, --recorded and --bundle are needed; see --help");
    }
    return options;
  }
  if (options.server.empty() || options.model.empty() || options.request.empty()) {
    throw std::invalid_argument("HOST:PORT, --model and --request are needed; see --help");
  }
  return options;
}

}  // namespace trunnion::bundle
