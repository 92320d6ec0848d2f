#include "bundle/json_node.h"

#include <algorithm>
#include <set>

namespace trunnion::bundle {
namespace {

using nlohmann::json;

bool is_alnum(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

std::string shortened(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

template <typename Strings>
std::string joined(const Strings& strings) {
  std::string text;
  for (const auto& string : strings) text += (text.empty() ? "" : ", ") + std::string(string);
  return text;
}

}  // namespace

bool is_name(std::string_view text) {
  if (text.empty() || text.size() > 64 || (text[0] >= '0' && text[0] <= '9')) return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return is_alnum(c) || c == '_'; });
}

bool is_path(std::string_view text) {
  if (text.empty() || text.size() > 255) return false;
  bool starts = true;
  for (const char c : text) {
    if (starts ? !(is_alnum(c) || c == '_') : !(is_alnum(c) || c == '_' || c == '.' || c == '-' || c == '/')) return false;
    starts = c == '/';
  }
  return !starts;
}

json parse_strictly(std::string_view text, const std::string& place) {
  std::vector<std::set<std::string>> keys;
  std::string repeated;
  const auto callback = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      repeated = parsed.get<std::string>();
    }
    return true;
  };
  try {
    json value = json::parse(text, callback);
    if (!repeated.empty()) throw BundleError(place + ": key \"" + repeated + "\" comes twice");
    return value;
  } catch (const json::exception& error) {
    throw BundleError(place + ": is not JSON: " + error.what());
  }
}

void JsonNode::fail(const std::string& expected) const {
  throw BundleError(place_ + " is " + shortened(value_) + ", expected " + expected);
}

void JsonNode::expect_keys(std::initializer_list<const char*> keys) const {
  if (!value_.is_object()) fail("an object");
  const std::set<std::string> expected(keys.begin(), keys.end());
  for (const auto& [key, value] : value_.items()) {
    if (!expected.contains(key)) throw BundleError(place_ + " has unknown key \"" + key + "\"; keys: " + joined(expected));
  }
  for (const std::string& key : expected) {
    if (!value_.contains(key)) throw BundleError(place_ + " has no \"" + key + "\"");
  }
}

JsonNode JsonNode::at(const std::string& key) const {
  if (!value_.is_object() || !value_.contains(key)) throw BundleError(place_ + " has no \"" + key + "\"");
  return JsonNode(value_.at(key), place_.empty() ? key : place_ + "." + key);
}

int64_t JsonNode::integer(int64_t min, int64_t max) const {
  const bool fits = value_.is_number_integer() &&
                    !(value_.is_number_unsigned() && value_.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits || value_.get<int64_t>() < min || value_.get<int64_t>() > max) {
    fail("an integer from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return value_.get<int64_t>();
}

double JsonNode::number() const {
  if (!value_.is_number()) fail("a number");
  return value_.get<double>();
}

bool JsonNode::boolean() const {
  if (!value_.is_boolean()) fail("true or false");
  return value_.get<bool>();
}

std::string JsonNode::string(size_t max_length) const {
  if (!value_.is_string() || value_.get_ref<const std::string&>().size() > 4 * max_length) {
    fail("a string of at most " + std::to_string(max_length) + " characters");
  }
  return value_.get<std::string>();
}

size_t JsonNode::choice(std::initializer_list<const char*> choices) const {
  const auto found = value_.is_string() ? std::find(choices.begin(), choices.end(), value_.get<std::string>()) : choices.end();
  if (found == choices.end()) fail("one of " + joined(choices));
  return static_cast<size_t>(found - choices.begin());
}

std::string JsonNode::name() const {
  if (!value_.is_string() || !is_name(value_.get_ref<const std::string&>())) {
    fail("a name: a letter or _, then at most 63 letters, digits or _");
  }
  return value_.get<std::string>();
}

std::string JsonNode::path() const {
  if (!value_.is_string() || !is_path(value_.get_ref<const std::string&>())) {
    fail("a path inside the bundle whose segments start with a letter, a digit or _");
  }
  return value_.get<std::string>();
}

std::string JsonNode::sha256() const {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (!value_.is_string()) fail("64 hexadecimal digits");
  const auto& text = value_.get_ref<const std::string&>();
  if (text.size() != 64 || !std::all_of(text.begin(), text.end(), is_hex)) fail("64 hexadecimal digits");
  return text;
}

std::vector<JsonNode> JsonNode::items(size_t min, size_t max) const {
  if (!value_.is_array() || value_.size() < min || value_.size() > max) {
    fail("an array of " + std::to_string(min) + " to " + std::to_string(max));
  }
  std::vector<JsonNode> found;
  for (size_t i = 0; i < value_.size(); ++i) found.emplace_back(value_[i], place_ + "[" + std::to_string(i) + "]");
  return found;
}

std::vector<std::pair<std::string, JsonNode>> JsonNode::members(size_t min, size_t max) const {
  if (!value_.is_object() || value_.size() < min || value_.size() > max) {
    fail("an object of " + std::to_string(min) + " to " + std::to_string(max) + " members");
  }
  std::vector<std::pair<std::string, JsonNode>> found;
  for (const auto& [key, value] : value_.items()) found.emplace_back(key, JsonNode(value, place_ + "." + key));
  return found;
}

}  // namespace trunnion::bundle
