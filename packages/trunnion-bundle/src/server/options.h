// The server's command line.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace trunnion::bundle {

struct Options {
  std::filesystem::path repository;
  std::string host = "127.0.0.1";
  int grpc_port = 8001, http_port = 8000;  // 0 = one that is free
  std::string platform;
  std::filesystem::path engines;  // empty = where find_engine() looks
  std::string settings = "{}";
  bool allows_plugins = false, allows_jit = true;
  bool load_only = false;  // print what loading took, and end
  std::filesystem::path record;  // requests are written there; "" = nowhere
  int record_limit = 1000;
  std::chrono::milliseconds poll{1000};  // 0 = load at start and when asked only
  std::chrono::seconds drain{30};
  int max_message_bytes = 64 << 20;
};

// Throws std::invalid_argument with the option, its value and the choices. Prints the usage and exits for --help.
Options read_options(int count, char** arguments);

}  // namespace trunnion::bundle
