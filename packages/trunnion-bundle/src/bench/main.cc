// trunnion-bench-bundle: rates and latencies of a server, and the best rate whose 99th percentile is within a bound.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "bench/json_file.h"
#include "bench/load.h"
#include "bench/options.h"
#include "bench/request_file.h"
#include "bench/shadow.h"

namespace {

using namespace trunnion::bundle;
using nlohmann::json;

// User and system time of a process so far, seconds; nothing if there is no such process.
std::optional<double> processor_seconds(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  if (!file) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The name may have spaces; it ends with the last parenthesis. Times are the 12th and 13th word behind it.
  std::istringstream words(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string word;
  double ticks = 0;
  for (int i = 1; i <= 13 && words >> word; ++i) {
    if (i >= 12) ticks += std::stod(word);
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double percentile(const std::vector<double>& ascending, double share) {
  if (ascending.empty()) return 0;
  return ascending[std::min(ascending.size() - 1, static_cast<size_t>(share * static_cast<double>(ascending.size())))];
}

json measure(Connections& connections, const RequestFile& file, const BenchOptions& options, int64_t rows, const LoadPlan& plan) {
  const auto request = file.request(options.model, rows);
  file.check(connections.ask(request), rows);
  std::vector<std::optional<double>> processor;
  const LoadResult result = connections.run(request, plan, [&] { processor.push_back(processor_seconds(options.server_pid)); });
  const auto count = static_cast<double>(result.latencies.size());
  json line = {{"rows", rows}, {"errors", result.errors}, {"requests", result.latencies.size()}, {"seconds", result.seconds}};
  if (plan.rate > 0) {
    line["planned_rate"] = plan.rate;
  } else {
    line["concurrency"] = plan.concurrency;
  }
  if (result.errors > 0 || count == 0) {
    // A server that refuses quickly would look fast.
    line["void"] = count == 0 && result.errors == 0 ? "no call ended in time" : result.first_error;
    return line;
  }
  line["requests_per_second"] = count / result.seconds;
  line["rows_per_second"] = count / result.seconds * static_cast<double>(rows);
  line["p50_ms"] = percentile(result.latencies, 0.5);
  line["p99_ms"] = percentile(result.latencies, 0.99);
  if (processor.size() == 2 && processor[0] && processor[1]) line["server_cpu_us_per_request"] = (*processor[1] - *processor[0]) / count * 1e6;
  return line;
}

void print(const json& line) {
  const bool is_open = line.contains("planned_rate");
  std::printf("rows %-5lld %s %-8.0f", static_cast<long long>(line["rows"]), is_open ? "rate" : "concurrency",
              line[is_open ? "planned_rate" : "concurrency"].get<double>());
  if (line.contains("void")) {
    std::printf("void, %lld errors: %s\n", static_cast<long long>(line["errors"]), line["void"].get<std::string>().c_str());
  } else {
    std::printf("%10.0f requests/s %10.0f rows/s  p50 %.2f ms  p99 %.2f ms\n", line["requests_per_second"].get<double>(),
                line["rows_per_second"].get<double>(), line["p50_ms"].get<double>(), line["p99_ms"].get<double>());
  }
  std::fflush(stdout);
}

int bench(const BenchOptions& options) {
  if (options.server_pid != 0 && !processor_seconds(options.server_pid)) {
    throw std::runtime_error("--server-pid is " + std::to_string(options.server_pid) + ", there is no such process");
  }
  const RequestFile file(options.request);
  const auto connections = connect(options.server, options.channels);
  json runs = json::array(), best = json::object();
  bool is_void = false;
  for (const int64_t rows : options.rows) {
    std::vector<LoadPlan> plans;
    for (const int64_t rate : options.rates) plans.push_back({0, static_cast<double>(rate), options.seconds, options.warmup_seconds});
    for (const int64_t count : options.concurrency) {
      if (options.rates.empty()) plans.push_back({count, 0, options.seconds, options.warmup_seconds});
    }
    json most;
    for (const LoadPlan& plan : plans) {
      const json line = measure(*connections, file, options, rows, plan);
      print(line);
      runs.push_back(line);
      is_void = is_void || line.contains("void");
      const bool counts = !line.contains("void") && line["p99_ms"] <= options.p99_ms;
      if (counts && (most.is_null() || line["rows_per_second"] > most["rows_per_second"])) most = line;
    }
    best[std::to_string(rows)] = most;
  }
  if (!options.json.empty()) {
    const json all = {{"model", options.model}, {"p99_bound_ms", options.p99_ms}, {"runs", runs}, {"best", best}};
    write_json(options.json, all);
  }
  return is_void ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const BenchOptions options = read_bench_options(count, arguments);
    return options.shadow.empty() ? bench(options) : shadow(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trunnion-bench-bundle: %s\n", error.what());
    return 2;
  }
}
