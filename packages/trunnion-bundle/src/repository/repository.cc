#include "repository/repository.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "batcher/quiet_thread.h"

namespace trunnion::bundle {
namespace {

namespace fs = std::filesystem;

// A version is a decimal number from 1 without leading zeros; 0 = it is none.
int64_t version_of(const std::string& name) {
  if (name.empty() || name.size() > 10 || name[0] == '0') return 0;
  if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) return 0;
  const int64_t version = std::stoll(name);
  return version <= kMaxSize ? version : 0;
}

// Those that are there at this moment; they may go while they are read.
std::vector<fs::path> folders_of(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::end(entry); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) found.push_back(entry->path());
  }
  return found;
}

}  // namespace

Repository::Repository(fs::path root, LoadOptions options, Log log)
    : root_(fs::absolute(root).lexically_normal()), options_(std::move(options)), log_(std::move(log)) {
  janitor_ = quiet_thread([this] { retire_all(); });
}

Repository::~Repository() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    for (auto& [name, entry] : entries_) {
      if (entry.model != nullptr) retired_.push_back(std::move(entry.model));
    }
    changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
  janitor_.join();
}

std::map<std::string, Repository::Versions> Repository::scan() const {
  std::map<std::string, Versions> found;
  const auto add = [&](const std::string& name, int64_t version, const fs::path& folder) {
    // Other names could not be asked for, or told apart in figures.
    if (version > 0 && is_path(name) && is_committed(folder)) found[name][version] = folder;
  };
  if (is_committed(root_)) {
    const fs::path folder = root_.filename().empty() ? root_.parent_path() : root_;
    const int64_t version = version_of(folder.filename().string());
    add((version > 0 ? folder.parent_path() : folder).filename().string(), std::max<int64_t>(version, 1), folder);
    return found;
  }
  for (const fs::path& model : folders_of(root_)) {
    for (const fs::path& folder : folders_of(model)) {
      add(model.filename().string(), version_of(folder.filename().string()), folder);
    }
  }
  return found;
}

void Repository::refresh() {
  for (const auto& [name, versions] : scan()) refresh_model(name, versions, false);
}

void Repository::load(const std::string& name) {
  const auto found = scan();
  const auto versions = found.find(name);
  if (versions == found.end()) throw BundleError("the repository has no committed version of " + name);
  refresh_model(name, versions->second, true);
  const int64_t newest = versions->second.rbegin()->first;
  const std::lock_guard lock(mutex_);
  const auto reason = entries_[name].failures.find(newest);
  if (reason != entries_[name].failures.end()) throw BundleError(reason->second);
}

void Repository::refresh_model(const std::string& name, const Versions& versions, bool again) {
  const std::lock_guard one_at_a_time(loading_);
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    // Taken before it is read: what changes meanwhile is seen the next time.
    const std::string mark = fingerprint(version->second);
    {
      const std::lock_guard lock(mutex_);
      Entry& entry = entries_[name];
      if (is_draining_ || (entry.is_unloaded && !again)) return;
      const bool is_served = entry.model != nullptr;
      const auto attempted = entry.attempted.find(version->first);
      if (!again && attempted != entry.attempted.end() && attempted->second == mark) {
        // The newest is what is served, or has failed before; then an older one may stand in if there is nothing else.
        if (is_served) return;
        continue;
      }
    }
    if (try_load(name, version->first, version->second, mark)) return;
    const std::lock_guard lock(mutex_);
    if (entries_[name].model != nullptr) return;
  }
}

bool Repository::try_load(const std::string& name, int64_t version, const fs::path& folder, const std::string& mark) {
  std::shared_ptr<Model> model;
  std::string reason;
  const auto start = std::chrono::steady_clock::now();
  try {
    model = Model::load(name, version, folder, options_);
  } catch (const std::exception& error) {
    reason = error.what();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::shared_ptr<Model> old;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[name];
    entry.attempted[version] = mark;
    entry.failures.erase(version);
    if (model == nullptr) {
      entry.failures[version] = reason;
      ++entry.failed_loads;
    } else {
      ++entry.loads;
      entry.jit_loads += model->is_jit() ? 1 : 0;
      entry.is_unloaded = false;
      old = std::exchange(entry.model, model);
    }
  }
  const std::string what = "model " + name + " version " + std::to_string(version);
  if (model == nullptr) {
    log_(what + " could not be loaded: " + reason);
    return false;
  }
  std::string how = model->is_jit() ? ", compiled here," : ",";
  if (!model->passed_over().empty()) how = " (not on " + model->passed_over() + ")" + how;
  log_(what + " is served on " + model->platform() + how + " loaded in " + std::to_string(seconds) + " s");
  if (old != nullptr) retire(std::move(old));
  return true;
}

bool Repository::unload(const std::string& name) {
  std::shared_ptr<Model> model;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end() || found->second.model == nullptr) return false;
    model = std::move(found->second.model);
    found->second.model = nullptr;
    found->second.is_unloaded = true;
  }
  retire(std::move(model));
  return true;
}

void Repository::retire(std::shared_ptr<Model> model) {
  const std::lock_guard lock(mutex_);
  retired_.push_back(std::move(model));
  changed_.notify_all();
}

// Models that are served no more: their queues run empty, and the last reference is given up here, never by one of
// their own threads.
void Repository::retire_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !retired_.empty() || is_closing_; });
    if (retired_.empty()) return;
    std::shared_ptr<Model> model = std::move(retired_.back());
    retired_.pop_back();
    is_retiring_ = true;
    lock.unlock();
    while (!model->drain(std::chrono::seconds(1))) continue;
    while (model.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    model.reset();
    lock.lock();
    is_retiring_ = false;
    changed_.notify_all();
  }
}

void Repository::watch(std::chrono::milliseconds interval) {
  watcher_ = quiet_thread([this, interval] {
    std::unique_lock lock(mutex_);
    while (!is_closing_ && !is_draining_) {
      lock.unlock();
      try {
        refresh();
      } catch (const std::exception& error) {
        log_(std::string("looking for new versions failed: ") + error.what());
      }
      lock.lock();
      changed_.wait_for(lock, interval, [this] { return is_closing_ || is_draining_; });
    }
  });
}

std::shared_ptr<Model> Repository::find(const std::string& name, int64_t version) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.model == nullptr) return nullptr;
  return version == 0 || found->second.model->version() == version ? found->second.model : nullptr;
}

std::vector<ModelState> Repository::index() const {
  const std::lock_guard lock(mutex_);
  std::vector<ModelState> states;
  for (const auto& [name, entry] : entries_) {
    if (entry.model != nullptr) states.push_back({name, entry.model->version(), true, ""});
    for (const auto& [version, reason] : entry.failures) states.push_back({name, version, false, reason});
    if (entry.is_unloaded) states.push_back({name, 0, false, "unloaded"});
  }
  return states;
}

std::string Repository::figures() const {
  const std::lock_guard lock(mutex_);
  nlohmann::json found = nlohmann::json::array();
  for (const auto& [name, entry] : entries_) {
    if (entry.model == nullptr) continue;
    const Model& model = *entry.model;
    nlohmann::json latencies = nlohmann::json::object();
    for (const auto& [signature, spec] : model.contract().signatures) {
      const auto& allowed = spec.batching.options.allowed;
      for (size_t i = 0; i < allowed.size(); ++i) latencies[signature][std::to_string(allowed[i])] = model.find(signature)->latencies()[i];
    }
    found.push_back({{"model", name}, {"version", model.version()}, {"platform", model.platform()}, {"compiled_here", model.is_jit()},
                     {"verify_seconds", model.times().verify}, {"open_seconds", model.times().open},
                     {"warm_seconds", model.times().warm}, {"batch_microseconds", latencies}});
  }
  return found.dump();
}

bool Repository::is_ready() const {
  const std::lock_guard lock(mutex_);
  return !is_draining_ && std::any_of(entries_.begin(), entries_.end(), [](const auto& entry) { return entry.second.model != nullptr; });
}

bool Repository::drain(std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::vector<std::shared_ptr<Model>> models;
  {
    const std::lock_guard lock(mutex_);
    is_draining_ = true;
    changed_.notify_all();
    for (const auto& [name, entry] : entries_) {
      if (entry.model != nullptr) models.push_back(entry.model);
    }
  }
  bool is_idle = true;
  for (const auto& model : models) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    is_idle = model->drain(std::max(left, std::chrono::milliseconds(0))) && is_idle;
  }
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, end, [this] { return retired_.empty() && !is_retiring_; }) && is_idle;
}

std::string Repository::metrics() const {
  std::vector<std::shared_ptr<Model>> models;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      const std::string labels = "{model=\"" + name + "\",result=";
      text += "bundle_loads_total" + labels + "\"ok\"} " + std::to_string(entry.loads) + "\n";
      text += "bundle_loads_total" + labels + "\"failed\"} " + std::to_string(entry.failed_loads) + "\n";
      text += "bundle_jit_loads_total{model=\"" + name + "\"} " + std::to_string(entry.jit_loads) + "\n";
      if (entry.model != nullptr) models.push_back(entry.model);
    }
  }
  for (const auto& model : models) text += model->metrics();
  return text;
}

}  // namespace trunnion::bundle
