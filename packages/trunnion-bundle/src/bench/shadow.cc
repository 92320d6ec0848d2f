#include "bench/shadow.h"

#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <grpcpp/support/status_code_enum.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/json_file.h"
#include "bench/load.h"
#include "bundle/contract.h"
#include "steps/elements.h"

namespace trunnion::bundle {
namespace {

using nlohmann::json;

Contract read_contract_of(const std::filesystem::path& bundle) {
  std::ifstream file(bundle / "bundle.json", std::ios::binary);
  if (!file) throw std::runtime_error((bundle / "bundle.json").string() + " cannot be read");
  return read_contract(std::string{std::istreambuf_iterator<char>(file), {}});
}

const SignatureSpec& signature_of(const Contract& contract, const inference::ModelInferRequest& request) {
  const std::string& model = request.model_name();
  const size_t colon = model.find(':');
  std::string name = colon == std::string::npos ? contract.default_signature : model.substr(colon + 1);
  if (const auto given = request.parameters().find("signature"); given != request.parameters().end()) name = given->second.string_param();
  const auto found = contract.signatures.find(name);
  if (found == contract.signatures.end()) throw std::runtime_error("a recorded request asks for signature " + name + ", which the bundle does not have");
  return found->second;
}

// Both NaN, or the same infinity, or near enough.
bool is_equal(Scalar found, Scalar wanted, const TensorSpec& spec) {
  if (std::isnan(found) || std::isnan(wanted)) return std::isnan(found) && std::isnan(wanted);
  if (std::isinf(found) || std::isinf(wanted)) return found == wanted;
  return std::abs(found - wanted) <= static_cast<Scalar>(spec.absolute) + static_cast<Scalar>(spec.relative) * std::abs(wanted);
}

std::string difference(const Tensor& found, const Tensor& wanted, const TensorSpec& spec) {
  const int64_t count = count_of(wanted.dims);
  for (int64_t i = 0; i < count; ++i) {
    const Scalar a = load(found, i), b = load(wanted, i);
    if (is_equal(a, b, spec)) continue;
    return "output " + spec.name + " at element " + std::to_string(i) + " is " + std::to_string(a) + ", the reference says " +
           std::to_string(b) + ", tolerance " + std::to_string(spec.absolute) + " + " + std::to_string(spec.relative) + " relative";
  }
  return "";
}

// An output of a response as a tensor; throws if it is not what the signature says.
Tensor tensor_of(const inference::ModelInferResponse& response, const TensorSpec& spec) {
  for (int i = 0; i < response.outputs_size() && i < response.raw_output_contents_size(); ++i) {
    const auto& output = response.outputs(i);
    if (output.name() != spec.name) continue;
    const std::string& bytes = response.raw_output_contents(i);
    std::vector<int64_t> dims(output.shape().begin(), output.shape().end());
    uint64_t size = static_cast<uint64_t>(size_of(spec.dtype));
    for (const int64_t dim : dims) {
      if (dim < 0 || __builtin_mul_overflow(size, static_cast<uint64_t>(dim), &size)) size = UINT64_MAX;
    }
    if (output.datatype() != name_of(spec.dtype) || size != bytes.size()) break;
    Tensor tensor = make_tensor(spec.dtype, std::move(dims));
    if (size > 0) std::memcpy(tensor.data.data(), bytes.data(), size);
    return tensor;
  }
  throw std::runtime_error("no output " + spec.name + " of dtype " + name_of(spec.dtype) + " with as many bytes as its shape has");
}

// Of a wrong request, or for what is not served; any other code says that a server failed, or that there is none.
bool is_refusal(int code) {
  return code == grpc::StatusCode::INVALID_ARGUMENT || code == grpc::StatusCode::NOT_FOUND;
}

bool is_asked(const inference::ModelInferRequest& request, const std::string& output) {
  const auto& asked = request.outputs();
  return asked.empty() || std::any_of(asked.begin(), asked.end(), [&](const auto& one) { return one.name() == output; });
}

// How the shadow's answer differs from the reference's, or "".
std::string compare(const inference::ModelInferRequest& request, const AskedAnswer& found, const AskedAnswer& wanted,
                    const SignatureSpec& signature) {
  if (found.code != wanted.code) {
    return "the shadow answers " + found.status + ", the reference " + wanted.status;
  }
  if (wanted.code != 0) return is_refusal(wanted.code) ? "" : "neither answers: the reference " + wanted.status + ", the shadow " + found.status;
  try {
    for (const TensorSpec& spec : signature.outputs) {
      if (!is_asked(request, spec.name)) continue;
      const Tensor reference = tensor_of(wanted.response, spec), tensor = tensor_of(found.response, spec);
      if (tensor.dims != reference.dims) return "output " + spec.name + " has another shape";
      if (const std::string text = difference(tensor, reference, spec); !text.empty()) return text;
    }
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

void note(json& summary, int64_t index, const inference::ModelInferRequest& request, const std::string& text) {
  summary["different"] = summary["different"].get<int64_t>() + 1;
  if (!summary["first"].is_null()) return;
  json shapes = json::object();
  for (const auto& input : request.inputs()) shapes[input.name()] = std::vector<int64_t>(input.shape().begin(), input.shape().end());
  summary["first"] = {{"request", index}, {"model", request.model_name()}, {"shapes", shapes}, {"difference", text}};
}

}  // namespace

int shadow(const BenchOptions& options) {
  const Contract contract = read_contract_of(options.bundle);
  std::ifstream file(options.recorded, std::ios::binary);
  if (!file) throw std::runtime_error(options.recorded.string() + " cannot be read");
  google::protobuf::io::IstreamInputStream stream(&file);
  const auto reference = connect(options.server, 1), other = connect(options.shadow, 1);
  json summary = {{"requests", 0}, {"different", 0}, {"refused_by_both", 0}, {"first", nullptr}};
  int64_t index = 0;
  for (;; ++index) {
    inference::ModelInferRequest request;
    bool at_end = false;
    if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&request, &stream, &at_end)) {
      if (at_end) break;
      throw std::runtime_error(options.recorded.string() + ": request " + std::to_string(index) + " is cut or is none");
    }
    const SignatureSpec& signature = signature_of(contract, request);
    const AskedAnswer wanted = reference->try_ask(request), found = other->try_ask(request);
    if (const std::string text = compare(request, found, wanted, signature); !text.empty()) {
      note(summary, index, request, text);
    } else if (wanted.code != 0) {
      summary["refused_by_both"] = summary["refused_by_both"].get<int64_t>() + 1;
    }
  }
  if (index == 0) throw std::runtime_error(options.recorded.string() + " has no requests");
  if (summary["refused_by_both"] == index) {
    throw std::runtime_error("both servers refuse all " + std::to_string(index) + " requests of " + options.recorded.string() + ": nothing was compared");
  }
  summary["requests"] = index;
  const auto different = summary["different"].get<int64_t>();
  std::printf("%lld requests, %lld different, %lld refused by both\n", static_cast<long long>(index), static_cast<long long>(different),
              static_cast<long long>(summary["refused_by_both"].get<int64_t>()));
  if (different > 0) std::printf("first: request %s\n", summary["first"].dump().c_str());
  if (!options.json.empty()) write_json(options.json, summary);
  return different > 0 ? 1 : 0;
}

}  // namespace trunnion::bundle
