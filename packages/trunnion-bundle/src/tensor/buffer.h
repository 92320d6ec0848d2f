// Memory of a tensor: aligned for engines, not initialised.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace trunnion::bundle {

class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(size_t size) : size_(size) {
    if (size == 0) return;
    const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    if (data_ == nullptr) throw std::bad_alloc();
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

}  // namespace trunnion::bundle
