// A file of trace events (the JSON array format of Chrome's tracing, which Perfetto opens), valid after every flush.
#pragma once

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

namespace trunnion::serving {

// Holds one step's events in memory; one thread writes. Times are nanoseconds of CLOCK_MONOTONIC.
class TraceFile {
 public:
  // Values are integers, so no event needs escaping; names and texts are this library's own.
  using Figures = std::initializer_list<std::pair<const char*, int64_t>>;

  // Replaces what lies at `path`. std::invalid_argument when it cannot be written.
  explicit TraceFile(const std::string& path);

  void name_track(int track, const char* name);
  void span(const char* name, int track, int64_t begin_ns, int64_t end_ns, Figures figures = {});
  void counter(const char* name, int64_t at_ns, Figures figures);
  // Part of the life of something with an id: `phase` is 'b'egin, 'n' for an instant, or 'e'nd.
  void life(char phase, const char* name, uint64_t id, int64_t at_ns, Figures figures = {}, const char* text = nullptr);
  // Write what came since; the file ends as JSON must.
  void flush();

 private:
  void open_event(const char* name, char phase, int64_t at_ns);
  void add_time(const char* key, int64_t ns);
  void add_figures(Figures figures, const char* text = nullptr);

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::string pending_;
  bool first_ = true, broken_ = false;
};

}  // namespace trunnion::serving
