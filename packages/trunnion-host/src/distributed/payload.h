// The bytes inside a message: appended one value at a time, read back with every length checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace trunnion::distributed {

// The other side sent something that the protocol does not allow.
class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Bytes = std::vector<std::byte>;

class PayloadWriter {
 public:
  explicit PayloadWriter(Bytes& bytes) : bytes_(bytes) { bytes_.clear(); }

  template <typename Value>
  void put(const Value& value) {
    static_assert(std::is_trivially_copyable_v<Value>);
    put_raw(&value, sizeof value);
  }
  void put_array(const int32_t* values, size_t count) { put_raw(values, count * sizeof *values); }
  void put_array(const float* values, size_t count) { put_raw(values, count * sizeof *values); }
  void put_list(std::span<const int32_t> values) {
    put(static_cast<int32_t>(values.size()));
    put_array(values.data(), values.size());
  }
  void put_text(const std::string& text) { put_raw(text.data(), text.size()); }

 private:
  void put_raw(const void* from, size_t size) {
    const size_t before = bytes_.size();
    bytes_.resize(before + size);
    if (size > 0) std::memcpy(bytes_.data() + before, from, size);
  }

  Bytes& bytes_;
};

// Throws ProtocolError when the payload is shorter than what is asked of it.
class PayloadReader {
 public:
  explicit PayloadReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename Value>
  Value take() {
    static_assert(std::is_trivially_copyable_v<Value>);
    Value value;
    std::memcpy(&value, take_raw(sizeof value), sizeof value);
    return value;
  }
  void take(int32_t* to, size_t count) {
    const std::byte* from = take_raw(count * sizeof *to);
    if (count > 0) std::memcpy(to, from, count * sizeof *to);
  }
  // Values that stay where they are: they lie as far from the payload's begin as what came before them is long.
  const float* view_floats(size_t count) { return reinterpret_cast<const float*>(take_raw(count * sizeof(float))); }
  std::vector<int32_t> take_list(size_t limit) {
    const auto count = static_cast<size_t>(take_count(static_cast<int64_t>(limit), "a list"));
    std::vector<int32_t> values(count);
    take(values.data(), count);
    return values;
  }
  // A length that what follows is read by: 0 ... limit.
  int32_t take_count(int64_t limit, const char* what) {
    const auto count = take<int32_t>();
    if (count < 0 || count > limit) {
      throw ProtocolError(std::string(what) + " of " + std::to_string(count) + " is outside 0 ... " +
                          std::to_string(limit));
    }
    return count;
  }
  std::string take_text() {
    const size_t size = bytes_.size();
    return {reinterpret_cast<const char*>(take_raw(size)), size};
  }
  size_t left() const { return bytes_.size(); }
  void expect_end() const {
    if (left() != 0) throw ProtocolError(std::to_string(left()) + " bytes too many");
  }

 private:
  const std::byte* take_raw(size_t size) {
    if (size > bytes_.size()) throw ProtocolError("a message is shorter than its content");
    const std::byte* from = bytes_.data();
    bytes_ = bytes_.subspan(size);
    return from;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace trunnion::distributed
