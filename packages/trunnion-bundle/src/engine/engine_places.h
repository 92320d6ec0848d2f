// Where the shared libraries of engines lie.
#pragma once

#include <filesystem>
#include <string>

namespace trunnion::bundle {

// The path of engine_NAME.so in `folder`; without one beside the program or the library that has this code, or in
// lib/trunnion_bundle where they are installed. Throws EngineRefused that names the folders.
std::filesystem::path find_engine(const std::string& name, const std::filesystem::path& folder);

}  // namespace trunnion::bundle
