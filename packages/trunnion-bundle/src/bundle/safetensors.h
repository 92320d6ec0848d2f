// Tensors of a safetensors file, copied.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "tensor/tensor.h"

namespace trunnion::bundle {

// By name. Throws BundleError on anything that is not the format: offsets, sizes and dtypes are checked.
std::map<std::string, Tensor> read_safetensors(const std::filesystem::path& path);

}  // namespace trunnion::bundle
