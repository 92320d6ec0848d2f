#include "serving/trace_file.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace trunnion::serving {
namespace {

constexpr const char* kTail = "\n]\n";

}  // namespace

TraceFile::TraceFile(const std::string& path) : file_(std::fopen(path.c_str(), "w"), &std::fclose) {
  if (file_ == nullptr) {
    throw std::invalid_argument("trace_file '" + path + "' cannot be written: " + std::strerror(errno));
  }
  std::fprintf(file_.get(), "[%s", kTail);
  std::fflush(file_.get());
}

void TraceFile::open_event(const char* name, char phase, int64_t at_ns) {
  pending_ += first_ ? "\n{\"name\": \"" : ",\n{\"name\": \"";
  first_ = false;
  pending_ += name;
  pending_ += "\", \"pid\": 1, \"ph\": \"";
  pending_ += phase;
  pending_ += '"';
  add_time("ts", at_ns);
}

// Microseconds, as the format wants them, with all digits; no locale and no rounding.
void TraceFile::add_time(const char* key, int64_t ns) {
  char text[64];
  std::snprintf(text, sizeof text, ", \"%s\": %lld.%03d", key, static_cast<long long>(ns / 1000),
                static_cast<int>(ns % 1000));
  pending_ += text;
}

void TraceFile::add_figures(Figures figures, const char* text) {
  pending_ += ", \"args\": {";
  const char* comma = "";
  for (const auto& [key, value] : figures) {
    pending_ += std::string(comma) + '"' + key + "\": " + std::to_string(value);
    comma = ", ";
  }
  if (text != nullptr) pending_ += std::string(comma) + "\"reason\": \"" + text + '"';
  pending_ += "}}";
}

void TraceFile::name_track(int track, const char* name) {
  open_event("thread_name", 'M', 0);
  pending_ += ", \"tid\": " + std::to_string(track) + ", \"args\": {\"name\": \"" + name + "\"}}";
}

void TraceFile::span(const char* name, int track, int64_t begin_ns, int64_t end_ns, Figures figures) {
  open_event(name, 'X', begin_ns);
  add_time("dur", end_ns - begin_ns);
  pending_ += ", \"tid\": " + std::to_string(track);
  add_figures(figures);
}

void TraceFile::counter(const char* name, int64_t at_ns, Figures figures) {
  open_event(name, 'C', at_ns);
  add_figures(figures);
}

void TraceFile::life(char phase, const char* name, uint64_t id, int64_t at_ns, Figures figures, const char* text) {
  open_event(name, phase, at_ns);
  pending_ += ", \"cat\": \"request\", \"id\": " + std::to_string(id);
  add_figures(figures, text);
}

void TraceFile::flush() {
  if (pending_.empty() || broken_) return;
  std::fseek(file_.get(), -static_cast<long>(std::strlen(kTail)), SEEK_END);
  pending_ += kTail;
  std::fwrite(pending_.data(), 1, pending_.size(), file_.get());
  pending_.clear();
  if (std::fflush(file_.get()) == 0) return;
  // A trace is no reason to stop serving; that it ends here must be said once.
  broken_ = true;
  std::fprintf(stderr, "trunnion: the trace ends early: %s\n", std::strerror(errno));
}

}  // namespace trunnion::serving
