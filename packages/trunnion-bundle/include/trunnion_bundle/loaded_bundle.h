// A bundle in this process: opened, verified and warm, answering without a server. C++20 and nothing else.
//
// The batching of the bundle applies to calls of different threads, as it does in the server. docs/embedding.md shows it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "trunnion_bundle/code.h"

namespace trunnion::bundle {

// A bundle that cannot be opened; the text names the place, the value and the choices.
struct TRUNNION_BUNDLE_API LoadError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A request that was not answered with kOk.
struct TRUNNION_BUNDLE_API InferError : std::runtime_error {
  InferError(Code why, const std::string& text) : std::runtime_error(text), code(why) {}
  Code code;
};

struct OpenOptions {
  std::filesystem::path engines;  // folder of engine_NAME.so; empty = beside the program or the library
  std::string platform;           // of bundle.json; "" = the first that runs here
  std::string settings = "{}";    // for engines, as a JSON object
  bool allows_plugins = false;    // to run code that the bundle brings
  bool allows_jit = true;         // to compile programs while it is opened
};

// A tensor that the caller keeps until the call returns. Names of dtypes are those of the Open Inference Protocol.
struct InputTensor {
  std::string_view name, dtype;
  std::span<const int64_t> dims;
  std::span<const std::byte> bytes;              // row-major, in this machine's byte order
  std::span<const std::string_view> strings = {};  // the elements of dtype BYTES, which has no `bytes`
};

struct OutputTensor {
  std::string name, dtype;
  std::vector<int64_t> dims;
  std::vector<std::byte> bytes;

  // The elements as a type of their size.
  template <typename Element>
  std::span<const Element> as() const {
    return {reinterpret_cast<const Element*>(bytes.data()), bytes.size() / sizeof(Element)};
  }
};

struct InferOptions {
  std::string_view signature = {};      // "" = the default
  int64_t priority = 0;                 // 0 = the signature's default, 1 = first
  std::chrono::microseconds timeout{};  // in the queue; 0 = as the bundle says
};

class TRUNNION_BUNDLE_API LoadedBundle {
 public:
  // Verifies every byte, opens the engine and warms up. Throws LoadError.
  explicit LoadedBundle(const std::filesystem::path& folder, const OpenOptions& options = {});
  // Answers what is queued with kUnavailable and waits for what runs. Not from a callback of its own.
  ~LoadedBundle();
  LoadedBundle(const LoadedBundle&) = delete;
  LoadedBundle& operator=(const LoadedBundle&) = delete;

  // All outputs of the signature, in its order. Any thread may call it at any time. Throws InferError.
  std::vector<OutputTensor> infer(std::span<const InputTensor> inputs, const InferOptions& options = {});

  // `code` is kOk, or `outputs` is empty and `problem` says why.
  using Callback = std::function<void(Code code, std::vector<OutputTensor> outputs, const std::string& problem)>;
  // Returns at once; `done` is called once, on any thread and perhaps before this returns. It must neither block nor throw.
  void infer_async(std::span<const InputTensor> inputs, const InferOptions& options, Callback done);

  // The lowering that runs, by its name in bundle.json.
  const std::string& platform() const;
  // Whether answers are made up by a simulated device.
  bool is_simulated() const;
  // Counters in the text format of Prometheus, labelled with the bundle's name.
  std::string metrics() const;

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

}  // namespace trunnion::bundle
