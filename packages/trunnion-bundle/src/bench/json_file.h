// Figures as a file of JSON.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace trunnion::bundle {

// Throws std::runtime_error if the file cannot be written.
inline void write_json(const std::filesystem::path& path, const nlohmann::json& figures) {
  std::ofstream file(path);
  file << figures.dump(2) << "\n";
  file.close();
  if (!file) throw std::runtime_error(path.string() + " cannot be written");
}

}  // namespace trunnion::bundle
