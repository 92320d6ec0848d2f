// A test runner in a page: TEST(name) { CHECK(...); }
#pragma once

#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

namespace check {

std::map<std::string, std::function<void()>>& tests();

struct Register {
  Register(const char* name, std::function<void()> body) { tests()[name] = std::move(body); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& text) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

template <typename A, typename B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream values;
  values << text << " (" << a << " and " << b << ")";
  fail(file, line, values.str());
}

}  // namespace check

#define TEST(name)                                        \
  static void name();                                     \
  static const check::Register register_##name(#name, name); \
  static void name()
#define CHECK(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__, #condition)
#define CHECK_EQ(a, b) check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)
