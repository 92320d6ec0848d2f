// AOTInductor: the library of a module, its constants views of the mapped checkpoint, or copies on the device.
//
// For devices other than the processor a library of torch's makes the runners: libtorch_cuda.so, libtorch_npu.so. Settings name it.
//
// The library checks nothing and aborts or reads elsewhere on wrong inputs: the caller has checked sizes, dtypes and ranges.
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/headeronly/version.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "engines/exported.h"
#include "engines/guarded.h"
#include "engines/mapped_weights.h"
#include "trunnion_bundle/engine.h"

namespace {

using namespace trunnion::bundle;
using nlohmann::json;
using torch::inductor::AOTIModelContainerRunner;
using torch::inductor::AOTIModelContainerRunnerCpu;

#if defined(__x86_64__)
constexpr const char* kMachine = "x86_64";
#elif defined(__aarch64__)
constexpr const char* kMachine = "aarch64";
#else
constexpr const char* kMachine = "another machine";
#endif

const std::map<std::string, at::ScalarType> kWeightTypes = {
    {"BOOL", at::kBool},   {"U8", at::kByte},   {"I8", at::kChar},      {"I16", at::kShort}, {"I32", at::kInt},
    {"I64", at::kLong},    {"F16", at::kHalf},  {"BF16", at::kBFloat16}, {"F32", at::kFloat}, {"F64", at::kDouble},
    {"U16", at::kUInt16},  {"U32", at::kUInt32}, {"U64", at::kUInt64},
};

at::ScalarType type_of(trn_dtype dtype) {
  switch (dtype) {
    case TRN_DTYPE_BOOL: return at::kBool;
    case TRN_DTYPE_UINT8: return at::kByte;
    case TRN_DTYPE_UINT16: return at::kUInt16;
    case TRN_DTYPE_UINT32: return at::kUInt32;
    case TRN_DTYPE_UINT64: return at::kUInt64;
    case TRN_DTYPE_INT8: return at::kChar;
    case TRN_DTYPE_INT16: return at::kShort;
    case TRN_DTYPE_INT32: return at::kInt;
    case TRN_DTYPE_INT64: return at::kLong;
    case TRN_DTYPE_FLOAT16: return at::kHalf;
    case TRN_DTYPE_BFLOAT16: return at::kBFloat16;
    case TRN_DTYPE_FLOAT32: return at::kFloat;
    case TRN_DTYPE_FLOAT64: return at::kDouble;
    case TRN_DTYPE_BYTES: break;
  }
  throw std::invalid_argument("dtype " + std::to_string(dtype) + " is unknown");
}

std::set<std::string> processor_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::string key = line.substr(0, line.find_first_of(" \t:"));
    if (key != "flags" && key != "Features") continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

void check_machine(const json& lowering) {
  if (lowering.at("machine") != kMachine) {
    throw Refused("it was compiled for " + lowering.at("machine").get<std::string>() + ", this machine is " + kMachine);
  }
  const std::set<std::string> flags = processor_flags();
  std::string missing;
  for (const auto& flag : lowering.at("isa")) {
    if (!flags.contains(flag.get<std::string>())) missing += (missing.empty() ? "" : ", ") + flag.get<std::string>();
  }
  if (!missing.empty()) throw Refused("this processor has no " + missing);
  const std::string version = std::string(TORCH_VERSION).substr(0, std::string(TORCH_VERSION).find('+'));
  if (lowering.at("torch_version") != version) {
    throw Refused("it was compiled by torch " + lowering.at("torch_version").get<std::string>() + ", this engine has " + version);
  }
}

at::Tensor view_of(const std::string& key, const WeightView& weight) {
  const auto type = kWeightTypes.find(weight.dtype);
  if (type == kWeightTypes.end()) throw Refused("weight " + key + " has dtype " + weight.dtype + ", which this engine does not take");
  return at::from_blob(weight.data, weight.dims, at::TensorOptions(type->second));
}

const std::map<std::string, c10::DeviceType> kDevices = {{"cpu", at::kCPU}, {"cuda", at::kCUDA}, {"npu", at::kPrivateUse1}};

// Loads the library of a device, which registers how its runners are made; called with opening() held.
void find_device(const json& lowering, const json& settings) {
  const std::string device = lowering.at("device"), library = settings.value("aoti_device_library", "");
  if (device == "cpu") return;
  const auto& makers = torch::inductor::getAOTIModelRunnerRegistry();
  // Global, for the compiled libraries call its functions.
  if (!makers.contains(device) && !library.empty() && dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw Refused("the library of device " + device + " cannot be loaded: " + dlerror());
  }
  if (!makers.contains(device)) {
    throw Refused("this engine has no device " + device + "; it has cpu, and those of the library that the setting aoti_device_library names");
  }
  const std::string arch = lowering.at("device_arch"), here = settings.value("aoti_device_arch", "");
  if (arch != here) throw Refused("it was compiled for " + arch + ", the setting aoti_device_arch says \"" + here + "\"");
}

std::unique_ptr<AOTIModelContainerRunner> make_runner(const std::string& library, const std::string& device) {
  if (device == "cpu") return std::make_unique<AOTIModelContainerRunnerCpu>(library, 1);
  const std::string folder = library.substr(0, library.rfind('/'));
  return torch::inductor::getAOTIModelRunnerRegistry().at(device)(library, 1, device, folder, false);
}

std::mutex& opening() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

struct trn_engine {
  explicit trn_engine(const trn_engine_options& options) : weights(options.weights, options.num_weights) {
    const json lowering = json::parse(options.lowering);
    check_machine(lowering);
    const json module = lowering.at("modules").at(options.module);
    const std::string library = std::string(options.bundle) + "/" + module.at("library").get<std::string>();
    const json settings = json::parse(options.settings);
    num_threads = settings.value("threads", 1);
    const std::string name = lowering.at("device");
    device = kDevices.at(name);
    const c10::InferenceMode inference;
    for (int32_t i = 0; i < options.num_runners; ++i) {
      // Constructors of these race with one another.
      const std::lock_guard lock(opening());
      find_device(lowering, settings);
      runners.push_back(make_runner(library, name));
      give_constants(*runners.back(), module.at("constants"));
    }
  }

  // The library dereferences what it is not given, and so must be given exactly what it has.
  void give_constants(AOTIModelContainerRunner& runner, const json& constants) {
    std::unordered_map<std::string, at::Tensor> given;
    for (const auto& [name, key] : constants.items()) given.emplace(name, constant_of(key));
    std::string wrong;
    const auto known = runner.getConstantNamesToOriginalFQNs();
    for (const auto& [name, fqn] : known) {
      if (!given.contains(name)) wrong += " " + name;
    }
    for (const auto& [name, tensor] : given) {
      if (!known.contains(name)) wrong += " " + name;
    }
    if (!wrong.empty()) throw Refused("constants of the library and of bundle.json differ:" + wrong);
    runner.update_constant_buffer(given, false, true, true);
  }

  // On the device, once for all runners; the runners do not own it.
  const at::Tensor& constant_of(const std::string& key) {
    const auto found = on_device.find(key);
    return found != on_device.end() ? found->second : on_device.emplace(key, view_of(key, weights.at(key)).to(device)).first->second;
  }

  void infer(int32_t runner, const trn_engine_tensor* inputs, int32_t num_inputs, const trn_engine_tensor* outputs, int32_t num_outputs) {
    const c10::InferenceMode inference;
    if (at::get_num_threads() != num_threads) at::set_num_threads(num_threads);
    std::vector<at::Tensor> given;
    for (int32_t i = 0; i < num_inputs; ++i) {
      const trn_engine_tensor& input = inputs[i];
      given.push_back(at::from_blob(input.data, {input.dims, static_cast<size_t>(input.num_dims)}, at::TensorOptions(type_of(input.dtype))).to(device));
    }
    const std::vector<at::Tensor> results = runners.at(static_cast<size_t>(runner))->run(given);
    if (std::ssize(results) != num_outputs) {
      throw std::runtime_error("the library made " + std::to_string(results.size()) + " outputs, expected " + std::to_string(num_outputs));
    }
    for (int32_t i = 0; i < num_outputs; ++i) copy_result(results[static_cast<size_t>(i)].to(at::kCPU).contiguous(), outputs[i]);
  }

  static void copy_result(const at::Tensor& result, const trn_engine_tensor& output) {
    const at::IntArrayRef dims(output.dims, static_cast<size_t>(output.num_dims));
    if (result.sizes() != dims || result.scalar_type() != type_of(output.dtype)) {
      std::ostringstream text;
      text << "output " << output.name << " came as " << result.scalar_type() << " " << result.sizes() << ", expected "
           << type_of(output.dtype) << " " << dims;
      throw std::runtime_error(text.str());
    }
    if (output.num_bytes > 0) std::memcpy(output.data, result.const_data_ptr(), output.num_bytes);
  }

  MappedWeights weights;
  c10::DeviceType device = at::kCPU;
  std::map<std::string, at::Tensor> on_device;  // by key of the checkpoint
  std::vector<std::unique_ptr<AOTIModelContainerRunner>> runners;
  int num_threads = 1;
};

namespace {

constexpr trn_engine_api kApi = trunnion::bundle::engine_api<trn_engine>("aoti", 0);

}  // namespace

extern "C" const trn_engine_api* trn_engine_get_api(void) { return &kApi; }
