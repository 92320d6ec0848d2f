// Random submits, cancels, slow readers and faults from several threads; to be run under the sanitizers too.
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "host_fixture.h"

namespace {

// One client: what it submits, reads, cancels; every whole output must equal the one computed alone.
class Client {
 public:
  Client(Host& host, uint64_t seed, const std::vector<std::vector<int32_t>>& prompts,
         const std::vector<std::vector<int32_t>>& expected, const trn_host_sampling& params)
      : host_(host), random_(seed), prompts_(prompts), expected_(expected), params_(params) {}

  void run(int num_requests) {
    for (int i = 0; i < num_requests; ++i) {
      const size_t index = random_() % prompts_.size();
      const uint64_t id = host_.submit(prompts_[index], params_);
      const bool cancels = random_() % 4 == 0, dawdles = random_() % 4 == 0;
      std::vector<int32_t> tokens;
      while (true) {
        if (dawdles) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
        if (cancels && random_() % 6 == 0) trn_host_cancel(host_.get(), id);
        const trn_host_event event = host_.next(id);
        if (event.type == TRN_EVENT_TOKEN) {
          tokens.push_back(event.token_id);
          continue;
        }
        CHECK(event.finish_reason != TRN_FINISH_ERROR);
        CHECK(event.finish_reason == TRN_FINISH_CANCELLED ? cancels : tokens == expected_[index]);
        CHECK(std::equal(tokens.begin(), tokens.end(), expected_[index].begin()));
        break;
      }
      if (random_() % 20 == 0) CHECK_EQ(trn_host_reset_prefix_cache(host_.get()), TRN_HOST_OK);
      if (random_() % 5 == 0) host_.stats();
    }
  }

 private:
  Host& host_;
  std::mt19937_64 random_;
  const std::vector<std::vector<int32_t>>& prompts_;
  const std::vector<std::vector<int32_t>>& expected_;
  const trn_host_sampling params_;
};

void fuzz(uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<std::vector<fake::Group>> choices{
      {{}}, {{}, {TRN_CACHE_WINDOW, 1 + static_cast<int32_t>(random() % 20)}}, {{}, {TRN_CACHE_RECURRENT}}};
  fake::config() = {.groups = choices[seed % choices.size()], .required_fields = TRN_FIELD_KV_CSR};
  // Prompts that share prefixes.
  auto prompts = random_prompts(seed, 24, 40);
  for (size_t i = 1; i < prompts.size(); ++i) {
    if (i % 2 == 1) std::copy_n(prompts[i - 1].begin(), std::min(prompts[i - 1].size(), prompts[i].size()),
                                prompts[i].begin());
  }
  const auto params = sampling(seed % 2 == 0 ? 0 : 0.8);
  const auto expected = alone(prompts, params);

  fake::config().fault = [](uint64_t step, const trn_forward_batch&) {
    // Too far apart to hit one request twice before it has come back.
    return step % 211 == 210 ? TRN_FAILED : TRN_OK;
  };
  trn_host_options options = default_options();
  options.queue_size = 1 + static_cast<int32_t>(random() % 6);
  options.executor.limits.max_num_tokens = 8 + static_cast<int32_t>(random() % 24);
  options.executor.limits.max_logits_rows = 1 + static_cast<int32_t>(random() % 8);
  options.kv_blocks = 14 + static_cast<int32_t>(random() % 20);
  options.prefix_caching = random() % 4 != 0;
  Host host(options);
  std::atomic<bool> ok = true;
  std::string first_error;
  std::mutex error_mutex;
  std::vector<std::thread> clients;
  for (uint64_t c = 0; c < 6; ++c) {
    clients.emplace_back([&, c] {
      try {
        Client(host, seed * 100 + c, prompts, expected, params).run(40);
      } catch (const std::exception& error) {
        const std::lock_guard lock(error_mutex);
        if (ok.exchange(false)) first_error = error.what();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  if (!ok) check::fail("seed", static_cast<int>(seed), first_error);
  const trn_host_stats stats = host.stats();
  CHECK_EQ(stats.blocks_used, 0);
  CHECK_EQ(stats.steps, stats.execute_calls);
  CHECK_EQ(stats.running + stats.waiting, 0);
}

}  // namespace

TEST(fuzz_of_clients) {
  const char* rounds = std::getenv("TRUNNION_FUZZ_ROUNDS");
  const uint64_t count = rounds == nullptr ? 6 : std::strtoull(rounds, nullptr, 10);
  for (uint64_t seed = 0; seed < count; ++seed) fuzz(seed);
}
