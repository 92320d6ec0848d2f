// Programs on any PJRT plugin, one for each size: StableHLO, compiled when the bundle is opened, or executables of that plugin.
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engines/exported.h"
#include "engines/guarded.h"
#include "engines/mapped_weights.h"
#include "engines/pjrt_client.h"
#include "trunnion_bundle/engine.h"

namespace {

using namespace trunnion::bundle;
using nlohmann::json;

// Rows as "batch", where there is a batch axis, and symbols by name.
using Sizes = std::map<std::string, int64_t>;

const std::map<std::string, PJRT_Buffer_Type> kWeightTypes = {
    {"BOOL", PJRT_Buffer_Type_PRED}, {"U8", PJRT_Buffer_Type_U8},   {"U16", PJRT_Buffer_Type_U16}, {"U32", PJRT_Buffer_Type_U32},
    {"U64", PJRT_Buffer_Type_U64},   {"I8", PJRT_Buffer_Type_S8},   {"I16", PJRT_Buffer_Type_S16}, {"I32", PJRT_Buffer_Type_S32},
    {"I64", PJRT_Buffer_Type_S64},   {"F16", PJRT_Buffer_Type_F16}, {"BF16", PJRT_Buffer_Type_BF16}, {"F32", PJRT_Buffer_Type_F32},
    {"F64", PJRT_Buffer_Type_F64},
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string text_of(const Sizes& sizes) {
  std::string text;
  for (const auto& [name, size] : sizes) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(size);
  return "(" + text + ")";
}

// An argument of the flattened function: a weight that lies on the device, or the position of an input.
struct Argument {
  const PjrtBuffer* weight = nullptr;
  size_t input = 0;
};

struct Program {
  PjrtExecutable executable;
  std::vector<size_t> kept;
};

}  // namespace

struct trn_engine {
  explicit trn_engine(const trn_engine_options& options) {
    const json settings = json::parse(options.settings), lowering = json::parse(options.lowering);
    if (!settings.contains("pjrt_plugin")) {
      throw Refused("no PJRT plugin is given; it is the path \"pjrt_plugin\" of the settings");
    }
    client = PjrtClient::of_plugin(settings.at("pjrt_plugin").get<std::string>());
    is_compiled = lowering.at("program") == "executable";
    if (is_compiled) expect_same_place(lowering);
    choose_platform(lowering.at("platforms").get<std::vector<std::string>>());
    read_inputs(json::parse(options.contract));
    const json module = lowering.at("modules").at(options.module);
    upload_weights(module, MappedWeights(options.weights, options.num_weights));
    for (const json& program : module.at("programs")) add_program(program, options.bundle);
  }

  // An executable is of one version of the plugin and one topology.
  void expect_same_place(const json& lowering) const {
    const auto expect = [](const std::string& what, const std::string& wanted, const std::string& found) {
      if (wanted != found) throw Refused("compiled for " + what + " \"" + wanted + "\", here is \"" + found + "\"");
    };
    expect("plugin", lowering.at("plugin_version"), client->version());
    expect("topology", lowering.at("topology"), client->topology());
  }

  // A module for several platforms takes the index of its own as the first argument.
  void choose_platform(const std::vector<std::string>& platforms) {
    const std::string mine = client->platform();
    std::string choices;
    for (size_t i = 0; i < platforms.size(); ++i) {
      choices += (choices.empty() ? "" : ", ") + platforms[i];
      if (platforms[i] != mine) continue;
      const auto index = static_cast<int32_t>(i);
      if (platforms.size() > 1) platform_index = client->upload(PJRT_Buffer_Type_S32, {}, &index);
      return;
    }
    throw Refused("the PJRT plugin's platform is " + mine + ", the programs are for " + choices);
  }

  void read_inputs(const json& contract) {
    for (const json& input : contract.at("inputs")) {
      positions.emplace(input.at("name").get<std::string>(), dims.size());
      dims.push_back(input.at("dims"));
    }
    num_outputs = contract.at("outputs").size();
  }

  void upload_weights(const json& module, const MappedWeights& mapped) {
    for (const json& argument : module.at("arguments")) {
      if (argument.contains("input")) {
        arguments.push_back({nullptr, positions.at(argument.at("input"))});
        continue;
      }
      const std::string key = argument.at("weight");
      if (!weights.contains(key)) {
        const WeightView& view = mapped.at(key);
        const auto type = kWeightTypes.find(view.dtype);
        if (type == kWeightTypes.end()) throw Refused("weight " + key + " has dtype " + view.dtype + ", which this engine does not take");
        weights.emplace(key, client->upload(type->second, view.dims, view.data));
      }
      arguments.push_back({&weights.at(key), 0});
    }
  }

  void add_program(const json& given, const std::string& bundle) {
    Sizes sizes = given.at("symbols").get<Sizes>();
    if (!given.at("batch").is_null()) sizes["batch"] = given.at("batch");
    const std::string bytes = read_file(bundle + "/" + given.at("path").get<std::string>());
    Program program{is_compiled ? client->load(bytes) : client->compile(bytes), given.at("kept")};
    if (const size_t found = client->num_outputs(program.executable); found != num_outputs) {
      throw Refused("a program has " + std::to_string(found) + " outputs, the module " + std::to_string(num_outputs));
    }
    for (const size_t position : program.kept) {
      if (position >= arguments.size()) throw Refused("a program keeps argument " + std::to_string(position) + " of " + std::to_string(arguments.size()));
    }
    programs.emplace(std::move(sizes), std::move(program));
  }

  const Program& find(const trn_engine_tensor* inputs, int32_t num_inputs) const {
    Sizes sizes;
    for (int32_t i = 0; i < num_inputs; ++i) {
      const json& names = dims.at(static_cast<size_t>(i));
      for (size_t k = 0; k < names.size(); ++k) {
        if (names[k].is_string()) sizes[names[k]] = inputs[i].dims[k];
      }
    }
    const auto found = programs.find(sizes);
    if (found != programs.end()) return found->second;
    std::string known;
    for (const auto& [size, program] : programs) known += (known.empty() ? "" : ", ") + text_of(size);
    throw Refused("there is no program for " + text_of(sizes) + "; there are " + known);
  }

  void infer(int32_t, const trn_engine_tensor* inputs, int32_t num_inputs, const trn_engine_tensor* outputs, int32_t count) const {
    const Program& program = find(inputs, num_inputs);
    std::vector<PjrtBuffer> uploaded;
    std::vector<PJRT_Buffer*> given;
    if (platform_index.get() != nullptr) given.push_back(platform_index.get());
    for (const size_t position : program.kept) {
      const Argument& argument = arguments[position];
      if (argument.weight != nullptr) {
        given.push_back(argument.weight->get());
        continue;
      }
      const trn_engine_tensor& input = inputs[argument.input];
      uploaded.push_back(client->upload(pjrt_type(input.dtype), {input.dims, static_cast<size_t>(input.num_dims)}, input.data));
      given.push_back(uploaded.back().get());
    }
    if (static_cast<size_t>(count) != num_outputs) throw std::invalid_argument("another number of outputs is asked for");
    const auto results = client->execute(program.executable, given, num_outputs);
    for (int32_t i = 0; i < count; ++i) client->download(results[static_cast<size_t>(i)], outputs[i]);
  }

  std::shared_ptr<PjrtClient> client;
  bool is_compiled = false;
  PjrtBuffer platform_index;
  std::map<std::string, size_t> positions;  // of inputs
  std::vector<json> dims;                   // of inputs, as the contract has them
  size_t num_outputs = 0;
  std::map<std::string, PjrtBuffer> weights;
  std::vector<Argument> arguments;
  std::map<Sizes, Program> programs;
};

namespace {

constexpr trn_engine_api kApi = trunnion::bundle::engine_api<trn_engine>("pjrt", 0);

}  // namespace

extern "C" const trn_engine_api* trn_engine_get_api(void) { return &kApi; }
