// What the server says of itself; CMake defines the version, which pyproject.toml has.
#pragma once

#include <array>

namespace trunnion::bundle {

inline constexpr const char* kServerName = "trunnion-serve-bundle";
inline constexpr const char* kServerVersion = TRUNNION_BUNDLE_VERSION;
inline constexpr std::array kExtensions = {"binary_tensor_data", "model_repository", "parameters", "schedule_policy"};

}  // namespace trunnion::bundle
