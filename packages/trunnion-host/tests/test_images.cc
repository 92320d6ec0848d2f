// Images in prompts: rows that are right however spans are cut, shared, preempted, failed or cancelled.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "host_fixture.h"
#include "serving/encoder_pool.h"
#include "serving/images.h"

namespace {

constexpr int32_t kPatchDim = 3, kPlaceholder = 49;

// A picture of `rows` placeholder tokens whose pixels follow from `seed`.
struct Picture {
  int32_t first_token, rows;
  int32_t seed = 1;
};

struct Question {
  std::vector<int32_t> tokens;
  std::vector<Picture> pictures;
};

// Text of `before` tokens, a picture of `rows`, text of `after` tokens.
Question ask(int32_t before, int32_t rows, int32_t after, int32_t seed = 1) {
  Question question;
  for (int32_t i = 0; i < before; ++i) question.tokens.push_back(i % 7);
  question.tokens.resize(question.tokens.size() + static_cast<size_t>(rows), kPlaceholder);
  for (int32_t i = 0; i < after; ++i) question.tokens.push_back(i % 5 + 10);
  question.pictures = {{before, rows, seed}};
  return question;
}

Question join(Question first, const Question& second) {
  const auto offset = static_cast<int32_t>(first.tokens.size());
  first.tokens.insert(first.tokens.end(), second.tokens.begin(), second.tokens.end());
  for (Picture picture : second.pictures) {
    picture.first_token += offset;
    first.pictures.push_back(picture);
  }
  return first;
}

// A question as C structs, and the memory they point to.
struct Submission {
  Submission(const Question& question, const trn_host_sampling& params, int32_t num_axes) : tokens(question.tokens) {
    pixels.reserve(question.pictures.size());
    for (const Picture& picture : question.pictures) {
      std::mt19937 random(static_cast<uint32_t>(picture.seed));
      auto& values = pixels.emplace_back(static_cast<size_t>(picture.rows) * 4 * kPatchDim);
      for (float& value : values) value = static_cast<float>(random() % 256);
      images.push_back({sizeof(trn_host_image), {1, 2, 2 * picture.rows}, values.data(), 4 * int64_t{picture.rows},
                        kPatchDim, picture.first_token, picture.rows});
    }
    request.struct_size = sizeof request;
    request.token_ids = tokens.data();
    request.num_tokens = static_cast<int32_t>(tokens.size());
    request.sampling = params;
    request.num_images = static_cast<int32_t>(images.size());
    request.images = images.data();
    if (num_axes > 1) count_positions(question, num_axes);
  }

  // As Qwen2-VL does: a picture of r tokens takes r / 2 positions along the last axis, and text goes on behind it.
  void count_positions(const Question& question, int32_t num_axes) {
    int32_t next = 0;
    size_t picture = 0;
    for (int32_t i = 0; i < request.num_tokens;) {
      const bool here = picture < question.pictures.size() && question.pictures[picture].first_token == i;
      const int32_t count = here ? question.pictures[picture++].rows : 1;
      for (int32_t j = 0; j < count; ++j) {
        for (int32_t axis = 0; axis < num_axes; ++axis) {
          positions.push_back(here && axis > 0 ? next + (axis == 1 ? j % 2 : j / 2) : next);
        }
      }
      next += (count + 1) / 2;
      i += count;
    }
    request.positions = positions.data();
    request.position_delta = next - request.num_tokens;
  }

  trn_host_request request{};
  const std::vector<int32_t> tokens;
  std::vector<std::vector<float>> pixels;
  std::vector<trn_host_image> images;
  std::vector<int32_t> positions;
};

uint64_t submit(const Host& host, const trn_host_request& request) {
  uint64_t id = 0;
  char error[512] = "";
  if (trn_host_submit(host.get(), &request, &id, error, sizeof error) != TRN_HOST_OK) throw std::runtime_error(error);
  return id;
}

uint64_t submit(const Host& host, const Question& question, const trn_host_sampling& params = sampling()) {
  // Gone when this returns: a host keeps its own pixels.
  return submit(host, Submission(question, params, fake::config().num_position_axes).request);
}

std::string refusal(const Host& host, const trn_host_request& request) {
  try {
    submit(host, request);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "accepted";
}

// Rows for every picture that a test has, unless it says otherwise.
trn_host_options options_with(int32_t encoder_rows = 64) {
  trn_host_options options = default_options();
  options.executor.limits.max_encoder_rows = encoder_rows;
  return options;
}

void use_images(int32_t num_axes = 3) { fake::config() = {.patch_dim = kPatchDim, .num_position_axes = num_axes}; }

void slow_down() {
  fake::config().fault = [](uint64_t, const trn_forward_batch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return TRN_OK;
  };
}

// The outputs when each question is alone in a fresh host and fits one step.
std::vector<std::vector<int32_t>> alone(const std::vector<Question>& questions,
                                        const trn_host_sampling& params = sampling()) {
  const fake::Config kept = fake::config();
  fake::config().fault = nullptr;
  trn_host_options options = options_with();
  options.prefix_caching = 0;
  options.overlap = 0;
  options.executor.limits.max_num_tokens = 64;
  std::vector<std::vector<int32_t>> outputs;
  {
    Host host(options);
    for (const Question& question : questions) outputs.push_back(host.wait(submit(host, question, params)).tokens);
  }
  fake::config() = kept;
  return outputs;
}

void check_empty(const Host& host) {
  const trn_host_stats stats = host.stats();
  CHECK_EQ(stats.encoder_rows_used, 0);
  CHECK_EQ(stats.blocks_used, 0);
  CHECK_EQ(stats.steps, stats.execute_calls);
}

}  // namespace

TEST(images_keep_their_rows_wherever_a_chunk_cuts_them) {
  for (const int32_t axes : {1, 3}) {
    use_images(axes);
    const Question question = join(ask(5, 9, 6), ask(0, 4, 3, 2));
    const auto expected = alone({question})[0];
    // Chunks of c cut the spans at every offset for some c, and c = 1 at all of them.
    for (int32_t chunk = 1; chunk <= 28; ++chunk) {
      trn_host_options options = options_with();
      options.executor.limits.max_num_tokens = chunk;
      Host host(options);
      CHECK(host.wait(submit(host, question)).tokens == expected);
      CHECK_EQ(host.stats().images_encoded, 2u);
      check_empty(host);
    }
  }
}

TEST(images_differ_where_the_text_is_the_same) {
  use_images();
  const std::vector<Question> questions{ask(4, 8, 5, 1), ask(4, 8, 5, 2), ask(4, 8, 5, 1), ask(4, 8, 5, 3)};
  const auto expected = alone(questions);
  CHECK(expected[0] != expected[1] && expected[1] != expected[3] && expected[0] == expected[2]);
  trn_host_options options = options_with();
  Host host(options);
  std::vector<uint64_t> ids;
  for (const Question& question : questions) ids.push_back(submit(host, question));
  auto ended = host.wait_all(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) CHECK(ended[ids[i]].tokens == expected[i]);
  check_empty(host);
}

TEST(images_that_do_not_fit_together_take_turns) {
  use_images();
  std::vector<Question> questions;
  for (int32_t seed = 1; seed <= 6; ++seed) questions.push_back(ask(seed, 10, 3, seed));
  questions.push_back({{1, 2, 3}, {}});
  const auto expected = alone(questions);
  for (const int32_t chunk : {3, 8, 32}) {
    // Rows for one of them, and for one and a half.
    for (const int32_t rows : {10, 15, 20}) {
      trn_host_options options = options_with(rows);
      options.executor.limits.max_num_tokens = chunk;
      options.prefix_caching = 0;
      Host host(options);
      std::vector<uint64_t> ids;
      for (const Question& question : questions) ids.push_back(submit(host, question));
      auto ended = host.wait_all(ids.size());
      for (size_t i = 0; i < ids.size(); ++i) CHECK(ended[ids[i]].tokens == expected[i]);
      CHECK_EQ(host.stats().images_encoded, 6u);
      CHECK(host.stats().encoder_rows_peak <= rows);
      CHECK_EQ(host.stats().encoder_rows_total, rows);
      check_empty(host);
    }
  }
}

TEST(text_passes_a_request_that_waits_for_rows) {
  use_images();
  struct Seen {
    std::atomic<bool> begun = false, submitted = false;
    std::vector<int32_t> tokens;  // of each step
  };
  const auto seen = std::make_shared<Seen>();
  fake::config().fault = [=](uint64_t, const trn_forward_batch& batch) {
    seen->tokens.push_back(batch.num_tokens);
    seen->begun = true;
    while (!seen->submitted) std::this_thread::yield();
    return TRN_OK;
  };
  Host host(options_with(8));
  host.submit({9}, sampling(0, 1));
  while (!seen->begun) std::this_thread::yield();
  submit(host, ask(0, 8, 16), sampling(0, 1));
  submit(host, ask(0, 8, 1, 2), sampling(0, 1));
  submit(host, {{1}, {}}, sampling(0, 1));
  seen->submitted = true;
  host.wait_all(4);
  check_empty(host);
  // The third prompt runs with the first; the second has the rows after it.
  CHECK(seen->tokens == (std::vector<int32_t>{1, 24 + 1, 9}));
}

TEST(images_of_preempted_requests_are_encoded_again) {
  use_images();
  std::vector<Question> questions;
  for (int32_t seed = 1; seed <= 4; ++seed) questions.push_back(ask(seed, 12, 2, seed));
  const auto params = sampling(0, 30);
  const auto expected = alone(questions, params);
  uint64_t preemptions = 0, encoded = 0;
  for (int32_t chunk = 2; chunk <= 9; ++chunk) {
    trn_host_options options = options_with(24);
    options.executor.limits.max_num_tokens = chunk;
    options.kv_blocks = 14;
    options.prefix_caching = 0;
    Host host(options);
    std::vector<uint64_t> ids;
    for (const Question& question : questions) ids.push_back(submit(host, question, params));
    auto ended = host.wait_all(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) CHECK(ended[ids[i]].tokens == expected[i]);
    preemptions += host.stats().preemptions;
    encoded += host.stats().images_encoded;
    check_empty(host);
  }
  CHECK(preemptions > 0 && encoded > 8 * 4);
}

TEST(images_found_in_the_prefix_cache_are_not_encoded) {
  use_images();
  // Blocks of 4: the first span ends within a block, the second with one.
  const std::vector<Question> questions{ask(3, 8, 9, 1), ask(3, 8, 9, 2), ask(4, 8, 9, 1), ask(4, 8, 9, 2)};
  const auto expected = alone(questions);
  Host host(options_with());
  for (size_t i = 0; i < questions.size(); ++i) {
    const uint64_t encoded = host.stats().images_encoded;
    const Ended first = host.wait(submit(host, questions[i])), again = host.wait(submit(host, questions[i]));
    CHECK(first.tokens == expected[i]);
    CHECK(again.tokens == expected[i]);
    // Of an equal text with another picture only blocks in front of the picture are the same.
    CHECK_EQ(first.finish.num_cached_tokens, i == 3 ? 4 : 0);
    CHECK_EQ(again.finish.num_cached_tokens, i < 2 ? 16 : 20);
    CHECK_EQ(host.stats().images_encoded, encoded + 1);
    CHECK_EQ(host.stats().encodes_skipped, i + 1);
  }
  check_empty(host);
}

TEST(prefix_that_ends_within_an_image_needs_its_rows) {
  use_images();
  const Question question = ask(3, 8, 1), longer = ask(3, 8, 9), wider = ask(3, 12, 1);
  const auto expected = alone({question, longer, wider});
  Host host(options_with());
  CHECK(host.wait(submit(host, question)).tokens == expected[0]);
  // Twelve tokens, three blocks: the last is computed again, and with it the picture's last three tokens.
  const Ended again = host.wait(submit(host, question));
  CHECK(again.tokens == expected[0]);
  CHECK_EQ(again.finish.num_cached_tokens, 8);
  CHECK_EQ(host.stats().images_encoded, 2u);
  CHECK(host.wait(submit(host, longer)).tokens == expected[1]);
  // The same token ids, up to the end, with a picture of another size.
  const Ended other = host.wait(submit(host, wider));
  CHECK(other.tokens == expected[2]);
  CHECK_EQ(other.finish.num_cached_tokens, 0);
}

TEST(equal_pictures_at_other_places_are_not_confused) {
  use_images(1);
  // One token of the picture more in front: the same ids, and the same picture, shifted against the blocks.
  Question question = ask(0, 8, 8), shifted = question;
  shifted.tokens = question.tokens;
  shifted.tokens.insert(shifted.tokens.begin(), kPlaceholder);
  shifted.tokens[9] = kPlaceholder;
  shifted.pictures[0].first_token = 1;
  Question unshifted = shifted;
  unshifted.pictures[0].first_token = 0;
  const auto expected = alone({shifted, unshifted});
  Host host(options_with());
  CHECK(host.wait(submit(host, shifted)).tokens == expected[0]);
  CHECK(host.wait(submit(host, unshifted)).tokens == expected[1]);
}

TEST(failed_step_encodes_its_images_again) {
  use_images();
  const std::vector<Question> questions{ask(2, 11, 5, 1), join(ask(3, 6, 2, 2), ask(0, 7, 3, 3)), {{1, 2, 3}, {}}};
  const auto expected = alone(questions);
  for (uint64_t step = 1; step <= 12; ++step) {
    fake::config().fault = [=](uint64_t number, const trn_forward_batch&) {
      return number == step ? TRN_FAILED : TRN_OK;
    };
    trn_host_options options = options_with(24);
    options.executor.limits.max_num_tokens = 5;
    Host host(options);
    std::vector<uint64_t> ids;
    for (const Question& question : questions) ids.push_back(submit(host, question));
    auto ended = host.wait_all(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) CHECK(ended[ids[i]].tokens == expected[i]);
    CHECK_EQ(host.stats().failed_steps, 1u);
    check_empty(host);
  }
}

TEST(plan_that_is_dropped_leaves_nothing_encoded) {
  use_images();
  const std::vector<Question> questions{ask(0, 8, 4, 1), ask(0, 8, 4, 2)};
  const auto expected = alone(questions);
  for (const trn_status status : {TRN_FAILED, TRN_REFUSED}) {
    // One picture a step: the second is planned while the first one's step runs, and fails.
    fake::config().fault = [=](uint64_t step, const trn_forward_batch&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return step == 2 ? status : TRN_OK;
    };
    trn_host_options options = options_with();
    options.overlap = 1;
    options.executor.limits.max_num_tokens = 12;
    Host host(options);
    host.wait(host.submit({1}, sampling(0, 1)));
    const uint64_t one = submit(host, questions[0]), two = submit(host, questions[1]);
    auto ended = host.wait_all(2);
    CHECK(ended[two].tokens == expected[1]);
    if (status == TRN_FAILED) CHECK(ended[one].tokens == expected[0]);
    CHECK_EQ(host.stats().dropped_plans, 1u);
    check_empty(host);
  }
}

TEST(cancelled_request_frees_its_rows) {
  use_images();
  const std::vector<Question> questions{ask(0, 30, 3, 1), ask(0, 30, 3, 2)};
  const auto expected = alone(questions);
  slow_down();
  trn_host_options options = options_with(30);
  options.executor.limits.max_num_tokens = 2;
  options.prefix_caching = 0;
  for (int delay = 0; delay < 8; ++delay) {
    Host host(options);
    const uint64_t goes = submit(host, questions[0]), stays = submit(host, questions[1]);
    std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    trn_host_cancel(host.get(), goes);
    CHECK_EQ(host.wait(goes).finish.finish_reason, TRN_FINISH_CANCELLED);
    CHECK(host.wait(stays).tokens == expected[1]);
    check_empty(host);
  }
}

TEST(text_prompts_of_a_model_with_axes_need_no_positions) {
  use_images();
  const Question text{{1, 2, 3, 4, 5, 6, 7, 8, 9}, {}};
  const auto expected = alone({text})[0];
  Host host(options_with());
  CHECK(host.wait(host.submit(text.tokens, sampling())).tokens == expected);
  // Both ways are found by each other.
  CHECK_EQ(host.wait(submit(host, text)).finish.num_cached_tokens, 8);
}

TEST(generated_tokens_go_on_where_the_delta_says) {
  use_images();
  const Question question = ask(2, 8, 3);
  Host host(options_with());
  const Submission as_told(question, sampling(), 3);
  const auto expected = host.wait(submit(host, as_told.request)).tokens;
  // The answer, taken for a prompt with a position each, goes on with the same tokens.
  Question told = question;
  told.tokens.insert(told.tokens.end(), expected.begin(), expected.begin() + 5);
  const Ended rest = host.wait(submit(host, told, sampling(0, 7)));
  CHECK(std::equal(rest.tokens.begin(), rest.tokens.end(), expected.begin() + 5));
  // And its blocks are those that the answer left.
  CHECK(rest.finish.num_cached_tokens >= 16);
  trn_host_request other = as_told.request;
  other.position_delta -= 1;
  CHECK(host.wait(submit(host, other)).tokens != expected);
}

TEST(images_that_cannot_work_are_refused_by_name) {
  use_images();
  trn_host_options options = options_with(10);
  {
    Host host(options);
    const auto refused = [&](auto change, const std::string& line) {
      Submission submission(join(ask(2, 4, 2), ask(1, 5, 1)), sampling(), 3);
      change(submission);
      CHECK_EQ(refusal(host, submission.request), line);
    };
    using S = Submission;
    refused([](S&) {}, "accepted");
    refused([](S& s) { s.images[1].first_token = 5; },
            "images[1].first_token is 5, within or before the image in front of it, which ends at 5");
    refused([](S& s) { std::swap(s.images[0], s.images[1]); },
            "images[1].first_token is 2, within or before the image in front of it, which ends at 13");
    refused([](S& s) { s.images[1].first_token = 11; }, "images[1] has tokens 11 ... 15, the prompt has 0 ... 14");
    refused([](S& s) { s.images[0].first_token = -1; }, "images[0] has tokens -1 ... 2, the prompt has 0 ... 14");
    refused([](S& s) { s.images[0].num_tokens = 0; }, "images[0].num_tokens is 0, expected at least 1");
    refused([](S& s) { s.images[0].num_patches = 15; },
            "images[0].pixels has the shape [15, 3], its grid and this model need [16, 3]");
    refused([](S& s) { s.images[1].patch_dim = 4; },
            "images[1].pixels has the shape [20, 4], its grid and this model need [20, 3]");
    refused([](S& s) { s.images[1].pixels = nullptr; }, "images[1].pixels is NULL");
    refused([](S& s) { s.images[0].grid[2] = 0; }, "images[0].grid has 0, expected 1 ... 1048576");
    refused([](S& s) { s.images[0].struct_size = 8; }, "images[0].struct_size is not that of this library's header");
    refused([](S& s) { s.request.images = nullptr; }, "num_images is 2, expected the length of images");
    refused([](S& s) { s.request.num_images = -1; }, "num_images is -1, expected the length of images");
    refused([](S& s) { s.request.positions = nullptr; },
            "positions are missing: this model counts 3 axes, a prompt with images needs [15, 3]");
    refused([](S& s) { s.positions[7] = 64; }, "positions[2] has 64, expected 0 ... 63 (max_model_len)");
    refused([](S& s) { s.positions[0] = -1; }, "positions[0] has -1, expected 0 ... 63 (max_model_len)");
    refused([](S& s) { s.request.position_delta = 1; }, "position_delta is 1, expected -15 ... 0");
    refused([](S& s) { s.request.position_delta = -16; }, "position_delta is -16, expected -15 ... 0");
    refused([](S& s) { s.request.kind = TRN_REQUEST_EMBED; }, "there are 2 images, and an embed request takes none");
    const Submission large(ask(1, 11, 1), sampling(), 3);
    CHECK_EQ(refusal(host, large.request),
             "the request can never fit: images[0] needs 11 rows of the encoder pool, max_encoder_rows is 10");
  }
  const Submission submission(ask(2, 4, 2), sampling(), 1);
  options.executor.limits.max_encoder_rows = 0;
  use_images(1);
  CHECK_EQ(refusal(Host(options), submission.request),
           "there are 1 images, and the encoder pool has no rows: max_encoder_rows is 0");
  fake::config() = {};
  CHECK_EQ(refusal(Host(options), submission.request), "there are 1 images, and this model takes none");
  options.executor.limits.max_encoder_rows = 8;
  try {
    Host never(options);
    CHECK(false);
  } catch (const std::runtime_error& error) {
    CHECK_EQ(std::string(error.what()), "max_encoder_rows is 8, and this model takes no images: expected 0");
  }
  options.executor.limits.max_encoder_rows = 0;
  const Submission with_positions({{1, 2}, {}}, sampling(), 3);
  CHECK_EQ(refusal(Host(options), with_positions.request),
           "positions are given, and this model counts one axis: a token lies at its index");
}

TEST(pool_hands_out_the_first_run_that_is_long_enough) {
  trunnion::serving::EncoderPool pool(10);
  const int32_t first = pool.allocate(3), second = pool.allocate(4), third = pool.allocate(3);
  CHECK(first == 0 && second == 3 && third == 7);
  CHECK(!pool.can_allocate(1));
  pool.release(first);
  pool.release(third);
  // Six are free, three next to each other.
  CHECK(pool.can_allocate(3) && !pool.can_allocate(4));
  CHECK_EQ(pool.allocate(2), 0);
  CHECK_EQ(pool.allocate(3), 7);
  CHECK_EQ(pool.allocate(1), 2);
  CHECK_EQ(pool.num_used(), 10);
  CHECK_EQ(pool.peak_used(), 10);
}

namespace {

void fuzz(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return static_cast<int32_t>(random() % limit); };
  use_images(seed % 3 == 0 ? 1 : 3);
  if (seed % 4 == 1) fake::config().groups = {{}, {TRN_CACHE_WINDOW, 1 + below(20)}};
  if (seed % 4 == 2) fake::config().groups = {{}, {TRN_CACHE_RECURRENT}};
  std::vector<Question> questions;
  for (int i = 0; i < 16; ++i) {
    Question question = ask(below(6), 1 + below(14), 1 + below(5), 1 + below(3));
    if (i % 3 == 0) question = join(question, ask(below(3), 1 + below(14), below(5), 1 + below(3)));
    if (i % 5 == 0) question.pictures.clear();
    questions.push_back(question);
  }
  const auto params = sampling(seed % 2 == 0 ? 0 : 0.8);
  const auto expected = alone(questions, params);
  fake::config().fault = [](uint64_t step, const trn_forward_batch&) { return step % 211 == 210 ? TRN_FAILED : TRN_OK; };
  trn_host_options options = options_with(14 + below(20));
  options.queue_size = 1 + below(6);
  options.executor.limits.max_num_tokens = 8 + below(24);
  options.executor.limits.max_logits_rows = 1 + below(8);
  options.kv_blocks = 14 + below(20);
  options.prefix_caching = seed % 4 != 3;
  Host host(options);
  std::mutex mutex;
  std::string first_error;
  std::vector<std::thread> clients;
  for (uint64_t c = 0; c < 6; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937_64 own(seed * 100 + c);
      try {
        for (int i = 0; i < 25; ++i) {
          const size_t index = own() % questions.size();
          const uint64_t id = submit(host, questions[index], params);
          const bool cancels = own() % 4 == 0;
          if (cancels) {
            std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
            trn_host_cancel(host.get(), id);
          }
          const Ended ended = host.wait(id);
          CHECK(ended.finish.finish_reason != TRN_FINISH_ERROR);
          CHECK(cancels || ended.tokens == expected[index]);
          CHECK(std::equal(ended.tokens.begin(), ended.tokens.end(), expected[index].begin()));
          if (own() % 20 == 0) CHECK_EQ(trn_host_reset_prefix_cache(host.get()), TRN_HOST_OK);
        }
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (first_error.empty()) first_error = error.what();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  if (!first_error.empty()) check::fail("seed", static_cast<int>(seed), first_error);
  CHECK_EQ(host.stats().refused_steps, 0u);
  check_empty(host);
}

}  // namespace

TEST(fuzz_of_clients_with_images) {
  const char* rounds = std::getenv("TRUNNION_FUZZ_ROUNDS");
  const uint64_t count = rounds == nullptr ? 8 : std::strtoull(rounds, nullptr, 10);
  for (uint64_t seed = 0; seed < count; ++seed) fuzz(seed);
}
