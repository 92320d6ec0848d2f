// A folder of models and their versions: loads the newest that is committed, swaps it in when it is warm, drains the old.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "model/model.h"

namespace trunnion::bundle {

// One line of what the repository holds.
struct ModelState {
  std::string name;
  int64_t version = 0;
  bool is_ready = false;
  std::string reason;  // of a version that could not be loaded
};

class Repository {
 public:
  using Log = std::function<void(const std::string&)>;

  // `root` is a folder NAME/VERSION/..., or one bundle, which is served under its folder's name.
  Repository(std::filesystem::path root, LoadOptions options, Log log);
  // Waits for requests of models that were replaced.
  ~Repository();
  Repository(const Repository&) = delete;
  Repository& operator=(const Repository&) = delete;

  // The model that is served, or null. Version 0 = whichever it is.
  std::shared_ptr<Model> find(const std::string& name, int64_t version) const;
  std::vector<ModelState> index() const;
  bool is_ready() const;
  // Of each model that is served, what its load took.
  std::string figures() const;

  // Load what is new and committed; the first call loads everything. What cannot be loaded leaves in place what is served.
  void refresh();
  // As refresh() every `interval`, on a thread of its own.
  void watch(std::chrono::milliseconds interval);
  // Load the newest version of a model, even if it was loaded or failed before. Throws BundleError.
  void load(const std::string& name);
  // False if it is not served.
  bool unload(const std::string& name);

  // Refuse requests and wait for those that are here, also in models that were replaced; true if none is left.
  bool drain(std::chrono::milliseconds timeout);
  std::string metrics() const;

 private:
  using Versions = std::map<int64_t, std::filesystem::path>;
  struct Entry {
    std::shared_ptr<Model> model;
    std::map<int64_t, std::string> attempted;  // version -> fingerprint of what was loaded, or failed
    std::map<int64_t, std::string> failures;   // version -> reason
    uint64_t loads = 0, failed_loads = 0, jit_loads = 0;
    bool is_unloaded = false;
  };

  std::map<std::string, Versions> scan() const;
  void refresh_model(const std::string& name, const Versions& versions, bool again);
  // Whether it is served now.
  bool try_load(const std::string& name, int64_t version, const std::filesystem::path& folder, const std::string& mark);
  void retire(std::shared_ptr<Model> model);
  void retire_all();

  const std::filesystem::path root_;
  const LoadOptions options_;
  const Log log_;
  std::mutex loading_;  // one load at a time
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::vector<std::shared_ptr<Model>> retired_;
  bool is_retiring_ = false;  // one that is no longer among them
  std::condition_variable changed_;
  bool is_closing_ = false;
  bool is_draining_ = false;
  std::thread watcher_, janitor_;
};

}  // namespace trunnion::bundle
