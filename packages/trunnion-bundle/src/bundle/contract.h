// What bundle.json says, read and checked; docs/format.md is its specification.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bundle/dtype.h"
#include "bundle/json_node.h"
#include "policy/batch_policy.h"

namespace trunnion::bundle {

inline constexpr int64_t kFormatVersion = 1;
inline constexpr int64_t kMaxSize = 2147483647;

// An integer, "batch", or the name of a symbol.
struct Dim {
  int64_t size = 0;    // 0 where it is not an integer
  std::string symbol;  // "batch" for the batch
  bool is_batch() const { return symbol == "batch"; }
  bool operator==(const Dim&) const = default;
};

// Elements are from `min` and below `below`, which is one bound or one for each position of the last axis.
struct IndexRange {
  int64_t min = 0;
  std::vector<int64_t> below;
  // Whether every value of `other` may stand where this is asked for.
  bool contains(const IndexRange& other) const;
};

struct PadRule {
  enum class Kind { kZero, kRepeatRow, kValue } kind = Kind::kZero;
  double value = 0;
};

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kFp32;
  std::vector<Dim> dims;
  int batch_axis = -1;  // -1 = none
  std::optional<IndexRange> index_range;
  std::optional<PadRule> pad;
  double absolute = 0, relative = 0;  // tolerance
};

struct Bounds {
  int64_t min = 1, max = kMaxSize;
};
using Symbols = std::map<std::string, Bounds>;

struct ModuleSpec {
  std::vector<TensorSpec> inputs, outputs;
  std::optional<Bounds> batch;
  Symbols symbols;
  nlohmann::json json;  // as it was read
};

struct StepSpec {
  std::string op;
  bool is_request = false;  // its scope, else batch
  std::vector<std::string> inputs, outputs;
  nlohmann::json parameters;
};

struct BatchingSpec {
  BatchingOptions options;  // as the policy wants it, without latencies; priorities there start at 0
  int32_t default_priority = 0;
};

struct SignatureSpec {
  std::string name, description;
  std::vector<TensorSpec> inputs, outputs;
  Symbols symbols;
  std::vector<StepSpec> steps;
  BatchingSpec batching;
  std::vector<std::string> warmup, golden;
  bool has_batch = false;
  std::string module;  // that its one module step names
};

struct Lowering {
  std::string platform, engine;
  nlohmann::json json;
};

struct FileSpec {
  std::string sha256;
  int64_t size = 0;
};

struct Contract {
  std::string name, description, framework;
  std::map<std::string, ModuleSpec> modules;
  std::map<std::string, SignatureSpec> signatures;
  std::string default_signature;
  std::vector<std::string> weights;
  std::map<std::string, Lowering> lowerings;
  std::map<std::string, FileSpec> files;
};

// As in an error: [batch, 3].
std::string text_of(const std::vector<Dim>& dims);

// Throws BundleError.
Contract read_contract(std::string_view text);

// Parts of it, each in a file of its own.
TensorSpec read_tensor(const JsonNode& node, const char* kind_key);
// `dtype` (without BYTES unless `takes_bytes`), `dims` and `batch_axis` of a tensor.
void read_type(const JsonNode& node, bool takes_bytes, TensorSpec& tensor);
IndexRange read_index_range(const JsonNode& node, const TensorSpec& tensor);
Symbols read_symbols(const JsonNode& node);
SignatureSpec read_signature(const std::string& name, const JsonNode& node, const std::map<std::string, ModuleSpec>& modules);
BatchingSpec read_batching(const JsonNode& node, const ModuleSpec& module);

}  // namespace trunnion::bundle
