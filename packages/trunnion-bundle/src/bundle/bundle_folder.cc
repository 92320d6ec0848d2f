#include "bundle/bundle_folder.h"

#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <set>

#include "bundle/sha256.h"

namespace trunnion::bundle {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxContract = 16 << 20;
constexpr uintmax_t kMaxHistory = uintmax_t{1} << 30;

std::string read_text(const fs::path& path, uintmax_t max_size) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() != fs::file_type::regular) {
    throw BundleError(path.string() + " is no regular file of the bundle");
  }
  if (const auto size = fs::file_size(path, error); error || size > max_size) {
    throw BundleError(path.string() + " is larger than " + std::to_string(max_size) + " bytes");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw BundleError(path.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_hash(const std::string& text, const std::string& wanted, const fs::path& path) {
  if (const std::string found = sha256(text); found != wanted) {
    throw BundleError(path.string() + " has SHA-256 " + found + ", COMMITTED says " + wanted);
  }
}

// bundle.json, once COMMITTED vouches for it.
std::string read_committed(const fs::path& folder) {
  const fs::path path = folder / "COMMITTED";
  if (!is_committed(folder)) throw BundleError(folder.string() + " has no COMMITTED: it is no bundle, or not yet");
  const nlohmann::json json = parse_strictly(read_text(path, 4096), path.string());
  const JsonNode node(json, path.string());
  const JsonNode version = node.at("format_version");
  if (version.integer(INT64_MIN, INT64_MAX) != kFormatVersion) version.fail(std::to_string(kFormatVersion));
  node.expect_keys({"bundle_sha256", "format_version", "history_sha256"});
  expect_hash(read_text(folder / "history.jsonl", kMaxHistory), node.at("history_sha256").sha256(),
              folder / "history.jsonl");
  std::string text = read_text(folder / "bundle.json", kMaxContract);
  expect_hash(text, node.at("bundle_sha256").sha256(), folder / "bundle.json");
  return text;
}

// Folders that hold a listed file.
std::set<std::string> folders_of(const Contract& contract) {
  std::set<std::string> folders;
  for (const auto& [path, file] : contract.files) {
    for (fs::path folder = fs::path(path).parent_path(); !folder.empty(); folder = folder.parent_path()) {
      folders.insert(folder.string());
    }
  }
  return folders;
}

void check_nothing_else(const fs::path& folder, const Contract& contract) {
  const std::set<std::string> folders = folders_of(contract);
  const std::set<std::string> own = {"bundle.json", "history.jsonl", "COMMITTED"};
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    const auto type = entry.symlink_status().type();
    if (type == fs::file_type::symlink) throw BundleError(entry.path().string() + " is a symbolic link, which a bundle has none of");
    if (type == fs::file_type::directory) {
      if (!folders.contains(name)) throw BundleError(entry.path().string() + " is a folder without a listed file");
    } else if (type != fs::file_type::regular) {
      throw BundleError(entry.path().string() + " is neither a file nor a folder");
    } else if (!own.contains(name) && !contract.files.contains(name)) {
      throw BundleError(entry.path().string() + " is not listed in files of bundle.json");
    }
  }
}

void check_files(const fs::path& folder, const Contract& contract) {
  for (const auto& [name, file] : contract.files) {
    const fs::path path = folder / name;
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (error) throw BundleError(path.string() + " is listed in files of bundle.json and is not there");
    if (static_cast<int64_t>(size) != file.size) {
      throw BundleError(path.string() + " has " + std::to_string(size) + " bytes, bundle.json says " +
                        std::to_string(file.size));
    }
    if (const std::string found = sha256_of_file(path); found != file.sha256) {
      throw BundleError(path.string() + " has SHA-256 " + found + ", bundle.json says " + file.sha256);
    }
  }
}

}  // namespace

bool is_committed(const fs::path& folder) {
  std::error_code error;
  return fs::symlink_status(folder / "COMMITTED", error).type() == fs::file_type::regular;
}

VerifiedBundle verify_bundle(const fs::path& folder) {
  try {
    const std::string text = read_committed(folder);
    VerifiedBundle bundle{.folder = fs::absolute(folder), .contract = read_contract(text), .sha256 = sha256(text)};
    check_nothing_else(folder, bundle.contract);
    check_files(folder, bundle.contract);
    return bundle;
  } catch (const fs::filesystem_error& error) {
    throw BundleError(error.what());
  }
}

std::string fingerprint(const fs::path& folder) {
  std::set<std::string> lines;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(folder, error); !error && entry != fs::end(entry);
       entry.increment(error)) {
    struct stat found {};
    if (lstat(entry->path().c_str(), &found) != 0) continue;
    lines.insert(entry->path().string() + " " + std::to_string(found.st_size) + " " +
                 std::to_string(found.st_mtim.tv_sec) + " " + std::to_string(found.st_mtim.tv_nsec) + " " +
                 std::to_string(found.st_ino) + "\n");
  }
  std::string all;
  for (const std::string& line : lines) all += line;
  return sha256(all);
}

}  // namespace trunnion::bundle
