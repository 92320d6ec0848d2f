// The tensors of a checkpoint, in files of safetensors that are mapped and never copied.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trunnion::bundle {

// One file's mapping; every view of it must go before.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

struct WeightView {
  std::string dtype;  // as safetensors says it
  std::vector<int64_t> dims;
  char* data = nullptr;
  int64_t num_bytes = 0;
};

class MappedWeights {
 public:
  MappedWeights(const char* const* paths, int32_t count);
  // Throws std::runtime_error if no file has it.
  const WeightView& at(const std::string& key) const;

 private:
  void add(const std::string& path);
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::map<std::string, WeightView> views_;
};

}  // namespace trunnion::bundle
