// Asks the tiny DLRM in this process: rank BUNDLE
#include <cstdio>
#include <exception>
#include <vector>

#include "trunnion_bundle/loaded_bundle.h"

using trunnion::bundle::InputTensor;
using trunnion::bundle::LoadedBundle;

int main(int count, char** arguments) try {
  if (count != 2) throw std::invalid_argument("usage: rank BUNDLE");
  LoadedBundle bundle(arguments[1], {.engines = ENGINES});

  const int64_t rows = 3;
  const std::vector<float> dense(rows * 13, 0.5f);
  const std::vector<int64_t> sparse(rows * 26, 1), dense_dims = {rows, 13}, sparse_dims = {rows, 26};
  const std::vector<InputTensor> inputs = {
      {.name = "dense", .dtype = "FP32", .dims = dense_dims, .bytes = std::as_bytes(std::span(dense))},
      {.name = "sparse", .dtype = "INT64", .dims = sparse_dims, .bytes = std::as_bytes(std::span(sparse))}};

  const auto outputs = bundle.infer(inputs);
  for (const float score : outputs[0].as<float>()) std::printf("%.6f\n", score);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "rank: %s\n", error.what());
  return 1;
}
