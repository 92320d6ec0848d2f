#include "engines/mapped_weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace trunnion::bundle {

MappedFile::MappedFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat found {};
  if (file < 0 || fstat(file, &found) != 0) {
    if (file >= 0) close(file);
    throw std::runtime_error(path + " cannot be opened");
  }
  size_ = static_cast<size_t>(found.st_size);
  // Writable for libraries that ask for it, and private: the file never changes.
  void* mapped = size_ == 0 ? MAP_FAILED : mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) throw std::runtime_error(path + " cannot be mapped");
  data_ = static_cast<char*>(mapped);
}

MappedFile::~MappedFile() { munmap(data_, size_); }

MappedWeights::MappedWeights(const char* const* paths, int32_t count) {
  for (int32_t i = 0; i < count; ++i) add(paths[i]);
}

void MappedWeights::add(const std::string& path) {
  files_.push_back(std::make_unique<MappedFile>(path));
  const MappedFile& file = *files_.back();
  uint64_t length = 0;
  if (file.size() < sizeof length) throw std::runtime_error(path + " is no safetensors file");
  std::memcpy(&length, file.data(), sizeof length);
  if (length > file.size() - sizeof length) throw std::runtime_error(path + ": its header is longer than the file");
  char* data = file.data() + sizeof length + length;
  const auto size = static_cast<int64_t>(file.size() - sizeof length - length);
  const auto header = nlohmann::json::parse(file.data() + sizeof length, file.data() + sizeof length + length);
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") continue;
    const auto begin = value.at("data_offsets").at(0).get<int64_t>(), end = value.at("data_offsets").at(1).get<int64_t>();
    if (begin < 0 || end < begin || end > size) throw std::runtime_error(path + ": " + key + " lies outside of the file");
    WeightView view{.dtype = value.at("dtype"), .dims = value.at("shape").get<std::vector<int64_t>>(), .data = data + begin,
                    .num_bytes = end - begin};
    if (!views_.emplace(key, std::move(view)).second) throw std::runtime_error(key + " is in two files of weights");
  }
}

const WeightView& MappedWeights::at(const std::string& key) const {
  const auto found = views_.find(key);
  if (found == views_.end()) throw std::runtime_error("no file of weights has " + key);
  return found->second;
}

}  // namespace trunnion::bundle
