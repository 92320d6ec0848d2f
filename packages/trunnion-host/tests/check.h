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

template <typename A, typename B>
std::string compared(const char* text, const A& a, const B& b) {
  std::ostringstream line;
  line << text << " (" << a << " and " << b << ")";
  return line.str();
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& text) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

}  // namespace check

#define TEST(name)                                        \
  static void name();                                     \
  static const check::Register register_##name(#name, name); \
  static void name()
#define CHECK(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__, #condition)
#define CHECK_EQ(a, b) \
  if (!((a) == (b))) check::fail(__FILE__, __LINE__, check::compared(#a " == " #b, (a), (b)))
