// Runs single operators: a line of JSON with a step and its inputs in, a line with the outputs or the error out.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "steps/operators.h"

namespace {

using namespace trunnion::bundle;
using nlohmann::json;

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string to_hex(const std::byte* data, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    text += "0123456789abcdef"[static_cast<unsigned>(data[i]) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned>(data[i]) & 15];
  }
  return text;
}

Tensor read_input(const json& given) {
  Tensor tensor = make_tensor(*dtype_of(given.at("dtype").get<std::string>()), given.at("dims").get<std::vector<int64_t>>());
  if (tensor.dtype == Dtype::kBytes) {
    for (size_t i = 0; i < tensor.strings.size(); ++i) tensor.strings[i] = from_hex(given.at("strings").at(i));
    return tensor;
  }
  const std::string bytes = from_hex(given.at("data"));
  std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), tensor.data.size(), tensor.data.data());
  return tensor;
}

json run(const json& given) {
  StepSpec step{.op = given.at("op"), .is_request = true, .inputs = {}, .outputs = given.at("outputs"), .parameters = given.at("parameters")};
  std::vector<ValueType> types;
  std::vector<Tensor> inputs;
  for (const json& input : given.at("inputs")) {
    inputs.push_back(read_input(input));
    ValueType& type = types.emplace_back(ValueType{inputs.back().dtype, {}, 0, {}});
    for (const int64_t size : inputs.back().dims) type.dims.push_back(Dim{.size = size, .symbol = ""});
  }
  std::vector<const Tensor*> views;
  for (const Tensor& input : inputs) views.push_back(&input);
  OperatorContext context{.folder = given.at("folder").get<std::string>(), .symbols = {}};
  if (step.parameters.contains("lengths")) {
    const json& lengths = step.parameters.at("lengths");
    context.symbols["length"] = Bounds{lengths.front(), lengths.back()};
  }
  json outputs = json::array();
  for (const Tensor& output : make_operator(step, types, "step", context).run(views)) {
    outputs.push_back({{"dtype", name_of(output.dtype)}, {"dims", output.dims}, {"data", to_hex(output.data.data(), output.data.size())}});
  }
  return outputs;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer["outputs"] = run(json::parse(line));
    } catch (const BundleError& error) {
      answer["refused"] = error.what();
    } catch (const InvalidRequest& error) {
      answer["invalid"] = error.what();
    }
    std::cout << answer.dump() << "\n";
  }
}
