// What an executor is told of requests that share leading blocks: ranges of neighbours, worth it, and never a wrong one.
#include <algorithm>
#include <atomic>
#include <numeric>

#include "host_fixture.h"
#include "serving/prefix_levels.h"

using fake::Level;
using trunnion::serving::BatchEntry;
using trunnion::serving::CacheGroup;
using trunnion::serving::PrefixLevels;
using trunnion::serving::Request;

namespace {

constexpr int32_t kBlockSize = 4;

// Prompts that begin with one of `num_systems` texts of 18 tokens, in turns.
std::vector<std::vector<int32_t>> with_systems(int32_t num_systems, int32_t count) {
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < count; ++i) {
    std::vector<int32_t> prompt(18);
    std::iota(prompt.begin(), prompt.end(), 1 + i % num_systems);
    prompt.insert(prompt.end(), {30 + i, 40 - i, 7});
    prompts.push_back(prompt);
  }
  return prompts;
}

std::string json_of(const Host& host) {
  std::string json(trn_host_stats_json(host.get(), nullptr, 0), ' ');
  trn_host_stats_json(host.get(), json.data(), json.size() + 1);
  return json;
}

// The first prompt of each system is served before the others come, so that those find its blocks.
trn_host_stats serve(const trn_host_options& options, int32_t num_systems, int32_t count) {
  const auto prompts = with_systems(num_systems, count);
  const auto expected = alone(prompts, sampling());
  // Shut while requests arrive, so that they all run together.
  std::atomic<bool> open = true;
  fake::config().fault = [&open](uint64_t, const trn_forward_batch&) {
    open.wait(false);
    return TRN_OK;
  };
  Host host(options);
  for (int32_t i = 0; i < num_systems; ++i) host.wait(host.submit(prompts[size_t(i)], sampling()));
  open = false;
  std::vector<uint64_t> ids;
  for (const auto& prompt : prompts) ids.push_back(host.submit(prompt, sampling()));
  open = true;
  open.notify_all();
  auto ended = host.wait_all(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) CHECK(ended.at(ids[i]).tokens == expected[i]);
  fake::config().fault = {};
  return host.stats();
}

trn_host_options options_with(int32_t prefix_levels) {
  trn_host_options options = default_options();
  options.prefix_levels = prefix_levels;
  return options;
}

std::string off_reason(const trn_host_options& options) {
  Host host(options);
  const std::string json = json_of(host), name = "\"prefix_levels_off_reason\": \"";
  const size_t begin = json.find(name) + name.size();
  return json.substr(begin, json.find('"', begin) - begin);
}

// Requests that hold these blocks of one group, and have computed all of them.
struct Batch {
  explicit Batch(const std::vector<std::vector<int32_t>>& held) : requests(held.size()) {
    for (size_t b = 0; b < held.size(); ++b) {
      requests[b].id = b + 1;
      requests[b].blocks.groups = {{0, held[b]}};
      BatchEntry entry;
      entry.request = &requests[b];
      entry.num_tokens = 1;
      entry.is_decode = true;
      entry.begin = static_cast<int32_t>(held[b].size()) * kBlockSize;
      entries.push_back(entry);
    }
    buffers.prefix_indptr = indptr;
    buffers.prefix_lens = lens;
  }

  std::vector<Level> told(int32_t least_saved, trn_cache_kind kind = TRN_CACHE_FULL) {
    CacheGroup group;
    group.kind = kind;
    group.block_size = kBlockSize;
    PrefixLevels levels(std::span(&group, 1), least_saved);
    levels.gather(entries);
    std::vector<Level> found;
    const int32_t count = levels.fill(entries, buffers);
    for (int32_t p = 0; p < count; ++p) found.push_back({indptr[p + 1] - indptr[p], lens[p]});
    return found;
  }

  std::vector<uint64_t> order() const {
    std::vector<uint64_t> ids;
    for (const BatchEntry& entry : entries) ids.push_back(entry.request->id);
    return ids;
  }

  std::vector<Request> requests;
  std::vector<BatchEntry> entries;
  int32_t indptr[9] = {}, lens[8] = {};
  trn_input_buffers buffers{};
};

}  // namespace

TEST(prefix_levels_tell_of_shared_blocks_and_change_no_output) {
  fake::config().accepts_prefix_levels = true;
  const trn_host_stats stats = serve(options_with(1), 1, 6);
  const auto told = fake::told_levels();
  CHECK(!told.empty());
  CHECK_EQ(stats.prefix_level_steps, told.size());
  CHECK(stats.prefix_level_steps < stats.steps);
  // 18 equal tokens are four whole blocks.
  const auto all_six = [](const std::vector<Level>& step) { return step == std::vector<Level>{{6, 16}}; };
  CHECK(std::any_of(told.begin(), told.end(), all_six));
  fake::config() = {};
}

TEST(prefix_levels_put_those_who_share_side_by_side) {
  fake::config().accepts_prefix_levels = true;
  fake::config().groups = {{}, {TRN_CACHE_WINDOW, 6}};
  serve(options_with(1), 2, 8);
  const auto told = fake::told_levels();
  const auto two_fours = [](const std::vector<Level>& step) { return step == std::vector<Level>{{4, 16}, {4, 16}}; };
  CHECK(std::any_of(told.begin(), told.end(), two_fours));
  fake::config() = {};
}

TEST(prefix_levels_are_told_where_they_save_enough) {
  fake::config().accepts_prefix_levels = true;
  // Six requests share 16 tokens.
  for (const int32_t least : {5 * 16, 5 * 16 + 1}) {
    const trn_host_stats stats = serve(options_with(least), 1, 6);
    CHECK_EQ(fake::told_levels().empty(), least > 5 * 16);
    CHECK_EQ(stats.prefix_level_steps > 0, least == 5 * 16);
  }
  CHECK_EQ(serve(options_with(0), 1, 6).prefix_level_steps, 0u);
  CHECK(fake::told_levels().empty());
  fake::config() = {};
}

TEST(prefix_levels_are_never_told_where_nobody_reads_them) {
  CHECK_EQ(serve(options_with(1), 1, 6).prefix_level_steps, 0u);
  CHECK_EQ(off_reason(options_with(1)), std::string("no attention group of this executor makes use of shared blocks"));
  fake::config().accepts_prefix_levels = true;
  CHECK_EQ(off_reason(options_with(1)), std::string());
  CHECK_EQ(off_reason(options_with(0)), std::string("off by option"));
  trn_host_options without_cache = options_with(1);
  without_cache.prefix_caching = 0;
  CHECK_EQ(off_reason(without_cache), std::string("without the prefix cache no requests share blocks"));
  trn_host_options wrong = options_with(-1);
  trn_host* refused = nullptr;
  char error[256] = "";
  CHECK_EQ(trn_host_create(&wrong, &refused, error, sizeof error), TRN_HOST_INVALID);
  CHECK_EQ(std::string(error), std::string("prefix_levels is -1, expected 0 (off) or more"));
  fake::config() = {};
}

TEST(prefix_levels_survive_preemption_and_failed_steps) {
  fake::config().accepts_prefix_levels = true;
  fake::config().fault = [](uint64_t step, const trn_forward_batch&) { return step % 7 == 5 ? TRN_FAILED : TRN_OK; };
  trn_host_options options = options_with(1);
  options.kv_blocks = 16;
  const auto prompts = with_systems(2, 8);
  const auto expected = alone(prompts, sampling());
  trn_host_stats stats{};
  CHECK(together(options, prompts, sampling(), &stats) == expected);
  CHECK(stats.preemptions > 0);
  CHECK(stats.failed_steps > 0);
  CHECK(stats.prefix_level_steps > 0);
  fake::config() = {};
}

TEST(prefix_levels_cut_ranges_where_they_save_most) {
  // Two that share much, a third that shares little with both, and one with nothing in common.
  Batch batch({{1, 2, 3, 4, 5}, {9, 8}, {1, 2, 3, 4, 6}, {1, 7}});
  CHECK((batch.told(1) == std::vector<Level>{{2, 16}, {1, 0}, {1, 0}}));
  CHECK((batch.order() == std::vector<uint64_t>{1, 3, 4, 2}));
  // A third that shares enough for the range to be worth it.
  CHECK((Batch({{1, 2, 3}, {1, 2, 4}, {1, 5}}).told(1) == std::vector<Level>{{3, 4}}));
  CHECK((Batch({{1, 2, 3}, {1, 2, 4}, {1, 2, 5}}).told(1) == std::vector<Level>{{3, 8}}));
  CHECK(Batch({{1, 2}, {3, 4}}).told(1).empty());
  CHECK(Batch({{1, 2}, {1, 2}}).told(9).empty());
  CHECK((Batch({{1, 2}, {1, 2}}).told(8) == std::vector<Level>{{2, 8}}));
  // Groups that drop what lies behind a window share nothing for good.
  CHECK(Batch({{1, 2}, {1, 2}}).told(1, TRN_CACHE_WINDOW).empty());
}

TEST(prefix_levels_leave_decodes_first) {
  Batch batch({{5, 6}, {1, 2}, {5, 7}, {1, 3}});
  batch.entries[0].is_decode = batch.entries[1].is_decode = false;
  std::swap(batch.entries[0], batch.entries[3]);
  CHECK(batch.told(1).empty());
  CHECK((batch.order() == std::vector<uint64_t>{4, 3, 2, 1}));
  // A range may hold both.
  Batch mixed({{1, 2}, {3}, {1, 2}});
  mixed.entries[1].is_decode = mixed.entries[2].is_decode = false;
  CHECK((mixed.told(1) == std::vector<Level>{{2, 8}, {1, 0}}));
  CHECK((mixed.order() == std::vector<uint64_t>{1, 3, 2}));
}
