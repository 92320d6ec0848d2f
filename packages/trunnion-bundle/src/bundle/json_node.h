// A value in a JSON document with its place, so that every error names where it is.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/errors.h"

namespace trunnion::bundle {

// Parses; a key that comes twice in an object is a BundleError, as is anything that is not JSON.
nlohmann::json parse_strictly(std::string_view text, const std::string& place);

class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string place) : value_(value), place_(std::move(place)) {}

  // Exactly these keys, or it throws.
  void expect_keys(std::initializer_list<const char*> keys) const;
  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  JsonNode at(const std::string& key) const;
  bool is_null() const { return value_.is_null(); }
  bool is_string() const { return value_.is_string(); }
  bool is_array() const { return value_.is_array(); }

  int64_t integer(int64_t min, int64_t max) const;
  double number() const;
  bool boolean() const;
  std::string string(size_t max_length = 4000) const;
  // One of `choices`; its index.
  size_t choice(std::initializer_list<const char*> choices) const;
  // A name: [A-Za-z_][A-Za-z0-9_]{0,63}.
  std::string name() const;
  // A path under the bundle's folder: no "..", nothing hidden, nothing absolute.
  std::string path() const;
  std::string sha256() const;
  std::vector<JsonNode> items(size_t min, size_t max) const;
  std::vector<std::pair<std::string, JsonNode>> members(size_t min, size_t max) const;

  [[noreturn]] void fail(const std::string& expected) const;
  const nlohmann::json& raw() const { return value_; }
  const std::string& place() const { return place_; }

 private:
  const nlohmann::json& value_;
  std::string place_;
};

// Whether `text` can be the name of a tensor, signature, module, value or symbol.
bool is_name(std::string_view text);
bool is_path(std::string_view text);

}  // namespace trunnion::bundle
