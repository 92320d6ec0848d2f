// What an embedder relies on, checked on the bundle `sum` of tests/native/serving.py: x FP32 [batch, 2] -> y.
#include <atomic>
#include <cstdio>
#include <future>
#include <thread>
#include <vector>

#include "trunnion_bundle/loaded_bundle.h"

namespace {

using namespace trunnion::bundle;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

// Rows [value, 0].
struct Rows {
  explicit Rows(int64_t count, float value) : dims{count, 2} {
    for (int64_t i = 0; i < count; ++i) values.insert(values.end(), {value, 0.0f});
  }
  std::vector<InputTensor> inputs(std::string_view name = "x") const {
    return {{.name = name, .dtype = "FP32", .dims = dims, .bytes = std::as_bytes(std::span(values))}};
  }
  std::vector<int64_t> dims;
  std::vector<float> values;
};

Code code_of(LoadedBundle& bundle, const std::vector<InputTensor>& inputs, const InferOptions& options = {}) {
  try {
    bundle.infer(inputs, options);
    return Code::kOk;
  } catch (const InferError& error) {
    check(*error.what() != '\0', "an error says why");
    return error.code;
  }
}

void check_threads(LoadedBundle& bundle) {
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int turn = 0; turn < 40; ++turn) {
        const auto value = static_cast<float>(100 * thread + turn);
        const Rows rows(1 + turn % 3, value);
        const auto outputs = bundle.infer(rows.inputs());
        for (const float y : outputs.at(0).as<float>()) check(y == value, "each caller gets its own rows");
        ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  check(right == 320, "every call is answered");
}

void check_closing(const char* folder) {
  const Rows rows(64, 1);
  std::atomic<int> ok = 0, unavailable = 0;
  {
    LoadedBundle bundle(folder, {.engines = ENGINES});
    for (int call = 0; call < 30; ++call) {
      bundle.infer_async(rows.inputs(), {}, [&](Code code, std::vector<OutputTensor> outputs, const std::string&) {
        check(outputs.empty() == (code != Code::kOk), "outputs come with kOk only");
        ++(code == Code::kOk ? ok : unavailable);
      });
    }
  }
  check(ok > 0 && ok + unavailable == 30, "closing answers everything");
}

}  // namespace

int main(int count, char** arguments) {
  check(count == 2, "usage: embed_check BUNDLE");
  try {
    LoadedBundle("no-such-folder", {.engines = ENGINES});
    check(false, "a bundle that is not there cannot be opened");
  } catch (const LoadError& error) {
    check(std::string_view(error.what()).find("no-such-folder") != std::string_view::npos, "the error names the folder");
  }
  LoadedBundle bundle(arguments[1], {.engines = ENGINES});
  check(bundle.is_simulated() && bundle.platform() == "sim", "it says what runs");

  const Rows three(3, 7);
  const auto outputs = bundle.infer(three.inputs(), {.signature = "sum"});
  check(outputs.size() == 1 && outputs[0].name == "y" && outputs[0].dtype == "FP32", "outputs have names and dtypes");
  check(outputs[0].dims == std::vector<int64_t>{3} && outputs[0].as<float>()[2] == 7.0f, "outputs have sizes and values");

  check(code_of(bundle, three.inputs("z")) == Code::kInvalid, "a wrong name is the caller's mistake");
  check(code_of(bundle, three.inputs(), {.signature = "none"}) == Code::kNotFound, "an unknown signature is not found");
  check(code_of(bundle, three.inputs(), {.priority = 9}) == Code::kInvalid, "a priority is checked");
  check_threads(bundle);
  check(bundle.metrics().find("bundle_rows_total") != std::string::npos, "it counts");
  check_closing(arguments[1]);
  std::puts("ok");
}
