// A request of as many rows as asked for, made of a bundle's golden or warm-up file, and a check of its answer.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "open_inference.pb.h"
#include "tensor/tensor.h"

namespace trunnion::bundle {

class RequestFile {
 public:
  explicit RequestFile(const std::filesystem::path& path);

  // Its rows in turn, along the first axis.
  inference::ModelInferRequest request(const std::string& model, int64_t rows) const;
  // Throws std::runtime_error if the answer to request(rows) is not the golden one, within 1e-3 of it for floats.
  void check(const inference::ModelInferResponse& response, int64_t rows) const;

 private:
  std::map<std::string, Tensor> inputs_, outputs_;
};

}  // namespace trunnion::bundle
