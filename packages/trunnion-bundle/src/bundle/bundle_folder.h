// A bundle's folder: complete, unaltered and nothing beside it, or a BundleError.
#pragma once

#include <filesystem>
#include <string>

#include "bundle/contract.h"

namespace trunnion::bundle {

struct VerifiedBundle {
  std::filesystem::path folder;
  Contract contract;
  std::string sha256;  // of bundle.json
};

// Reads every byte of it.
VerifiedBundle verify_bundle(const std::filesystem::path& folder);

// Whether the folder has been committed, that is, whether it is worth a look.
bool is_committed(const std::filesystem::path& folder);

// Changes whenever a file of the folder is added, removed, resized or written to.
std::string fingerprint(const std::filesystem::path& folder);

}  // namespace trunnion::bundle
