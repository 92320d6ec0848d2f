// SHA-256 of text and of files, in lower-case hexadecimal.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace trunnion::bundle {

std::string sha256(std::string_view bytes);
// Throws BundleError if it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace trunnion::bundle
