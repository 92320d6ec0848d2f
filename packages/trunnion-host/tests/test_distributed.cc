// What ranks send each other: batches as bytes, and connections that break.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <thread>

#include "check.h"
#include "distributed/batch_codec.h"
#include "distributed/message_socket.h"
#include "distributed/workers.h"
#include "host_fixture.h"
#include "trunnion/worker.h"

using namespace trunnion::distributed;

namespace {

constexpr int32_t kWidth = 6, kStates = 2;
constexpr trn_limits kLimits{16, 4, 24, 4, 4, kStates, 8};

ModelFacts facts() {
  ModelFacts made;
  made.limits = kLimits;
  made.num_buffer_sets = 1;
  made.num_position_axes = 3;
  made.encoder_patch_dim = 2;
  made.has_csr = made.has_num_accepted = made.has_hidden_indices = made.has_encoder_indices = true;
  made.accepts_prefix_levels = true;
  made.num_token_types = 2;
  made.groups = {{false, kWidth}, {true, kStates}};
  return made;
}

// The buffers of one set, every entry with a value of its own.
struct Lent {
  explicit Lent(int32_t first) : memory(512) {
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = first + static_cast<int32_t>(i);
    groups[0] = {next(16), next(4 * kWidth), next(4), next(5), next(4 * kWidth), next(4), nullptr, nullptr, nullptr};
    groups[1].state_indices = next(4 * kStates);
    groups[1].has_initial_state = next(4);
    groups[1].num_accepted = next(4);
    inputs.input_ids = next(16);
    inputs.positions = next(16 * 3);
    inputs.query_start_loc = next(5);
    inputs.seq_lens = next(4);
    inputs.logits_indices = next(4);
    inputs.hidden_indices = next(16);
    inputs.encoder_indices = next(16);
    inputs.prefix_indptr = next(5);
    inputs.prefix_lens = next(4);
    inputs.token_type_ids = next(16);
    inputs.groups = groups;
  }
  int32_t* next(size_t count) {
    used += count;
    return memory.data() + used - count;
  }

  std::vector<int32_t> memory;
  size_t used = 0;
  trn_group_buffers groups[2]{};
  trn_input_buffers inputs{};
  // Two images, of 4 and 2 patches.
  float pixels[12] = {0.5f, -1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  int64_t shapes[2][2] = {{4, 2}, {2, 2}};
  DLTensor views[2]{};
  trn_encoder_item items[2]{};
};

// Two requests of 3 and 2 tokens; rows of 4 and 1 blocks.
trn_forward_batch fill(Lent& lent) {
  trn_forward_batch batch = trunnion::Executor::batch();
  batch.num_tokens = 5;
  batch.num_reqs = 2;
  batch.num_logits = 1;
  batch.max_query_len = 3;
  batch.max_seq_len = 15;
  std::fill(lent.groups[0].block_table + 4, lent.groups[0].block_table + kWidth, 0);
  std::fill(lent.groups[0].block_table + kWidth + 1, lent.groups[0].block_table + 2 * kWidth, 0);
  lent.groups[0].kv_indptr[0] = 0;
  lent.groups[0].kv_indptr[1] = 4;
  lent.groups[0].kv_indptr[2] = 5;
  for (int i = 0; i < 2; ++i) {
    lent.views[i] = {lent.pixels + 8 * i, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, lent.shapes[i], nullptr, 0};
    lent.items[i] = {&lent.views[i], {1, 2, 2 - i}, 3 * i, 2 - i};
  }
  batch.num_encoder_items = 2;
  batch.encoder_items = lent.items;
  batch.num_prefixes = 2;
  batch.has_token_types = 1;
  return batch;
}

std::vector<std::pair<const int32_t*, size_t>> used_rows(const Lent& lent) {
  const trn_group_buffers &pages = lent.groups[0], &states = lent.groups[1];
  return {{lent.inputs.input_ids, 5},  {lent.inputs.positions, 5 * 3},   {lent.inputs.query_start_loc, 3},
          {lent.inputs.seq_lens, 2},   {lent.inputs.logits_indices, 1}, {pages.slot_mapping, 5},
          {pages.kv_start, 2},         {pages.kv_indptr, 3},            {pages.kv_indices, 5},
          {pages.kv_last_page_len, 2}, {pages.block_table, 2 * kWidth}, {states.state_indices, 2 * kStates},
          {states.has_initial_state, 2}, {states.num_accepted, 2},
          {lent.inputs.hidden_indices, 5}, {lent.inputs.encoder_indices, 5},
          {lent.inputs.prefix_indptr, 3}, {lent.inputs.prefix_lens, 2}, {lent.inputs.token_type_ids, 5}};
}

template <typename Error, typename Call>
std::string thrown(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

struct Pair {
  Pair() { CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0); }
  int ends[2];
};

}  // namespace

TEST(batches_arrive_as_they_were_sent) {
  Lent from(1000), to(-1000);
  DecodedImages images;
  const trn_forward_batch batch = fill(from);
  Bytes payload;
  BatchCodec(facts()).encode(batch, from.inputs, payload);
  const trn_forward_batch arrived = BatchCodec(facts()).decode(payload, std::span(&to.inputs, 1), images);
  CHECK_EQ(arrived.num_tokens, 5);
  CHECK_EQ(arrived.num_reqs, 2);
  CHECK_EQ(arrived.num_logits, 1);
  CHECK_EQ(arrived.max_query_len, 3);
  CHECK_EQ(arrived.max_seq_len, 15);
  CHECK_EQ(arrived.lens_are_exact, 1);
  CHECK_EQ(arrived.num_encoder_items, 2);
  CHECK_EQ(arrived.num_prefixes, 2);
  CHECK_EQ(arrived.has_token_types, 1);
  for (int i = 0; i < 2; ++i) {
    const trn_encoder_item &sent = from.items[i], &received = arrived.encoder_items[i];
    CHECK(std::equal(sent.grid, sent.grid + 3, received.grid));
    CHECK_EQ(received.first_row, sent.first_row);
    CHECK_EQ(received.num_rows, sent.num_rows);
    CHECK(std::equal(sent.pixels->shape, sent.pixels->shape + 2, received.pixels->shape));
    const auto* pixels = static_cast<const float*>(received.pixels->data);
    CHECK(std::equal(pixels, pixels + sent.pixels->shape[0] * 2, static_cast<const float*>(sent.pixels->data)));
    CHECK(received.pixels->dtype.code == kDLFloat && received.pixels->dtype.bits == 32);
  }
  const auto sent = used_rows(from), received = used_rows(to);
  size_t touched = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    CHECK(std::equal(sent[i].first, sent[i].first + sent[i].second, received[i].first));
    touched += sent[i].second;
  }
  // Nothing beyond the step's rows is written.
  const auto is_old = [](int32_t value) { return value < -400; };
  const auto kept = static_cast<size_t>(std::count_if(to.memory.begin(), to.memory.end(), is_old));
  CHECK_EQ(kept, to.memory.size() - touched);
}

TEST(events_of_one_process_are_not_sent_to_another) {
  Lent lent(100);
  trn_forward_batch batch = fill(lent);
  const trn_kv_events events{sizeof events, 0, nullptr, nullptr, 0};
  batch.kv_events = &events;
  Bytes payload;
  try {
    BatchCodec(facts()).encode(batch, lent.inputs, payload);
    CHECK(false);
  } catch (const trunnion::Refused& error) {
    CHECK_EQ(error.field(), std::string("kv_events"));
  }
}

TEST(cut_and_overlong_batches_are_no_batches) {
  Lent from(1000), to(-1000);
  DecodedImages images;
  Bytes payload;
  BatchCodec(facts()).encode(fill(from), from.inputs, payload);
  const BatchCodec codec(facts());
  for (size_t size = 0; size < payload.size(); ++size) {
    const auto decode = [&] { codec.decode(std::span(payload.data(), size), std::span(&to.inputs, 1), images); };
    CHECK_EQ(thrown<ProtocolError>(decode), std::string("a message is shorter than its content"));
  }
  payload.push_back({});
  CHECK_EQ(thrown<ProtocolError>([&] { codec.decode(payload, std::span(&to.inputs, 1), images); }),
           std::string("1 bytes too many"));
}

TEST(counts_beyond_the_limits_write_nothing) {
  Lent from(1000), to(-1000);
  DecodedImages images;
  Bytes payload;
  BatchCodec(facts()).encode(fill(from), from.inputs, payload);
  const std::vector<int32_t> before = to.memory;
  // buffer_set, num_tokens, num_reqs and num_logits lead.
  for (const size_t count : {0, 1, 2, 3}) {
    for (const int32_t wrong : {-1, 17, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
      Bytes changed = payload;
      std::memcpy(changed.data() + count * sizeof wrong, &wrong, sizeof wrong);
      const auto decode = [&] { BatchCodec(facts()).decode(changed, std::span(&to.inputs, 1), images); };
      CHECK(thrown<ProtocolError>(decode).find("is outside 0 ... ") != std::string::npos);
      CHECK(to.memory == before);
    }
  }
}

TEST(prefix_levels_are_sent_only_where_they_are_accepted) {
  Lent from(1000), to(-1000);
  DecodedImages images;
  Bytes payload;
  trn_forward_batch batch = fill(from);
  BatchCodec(facts()).encode(batch, from.inputs, payload);
  ModelFacts other = facts();
  other.accepts_prefix_levels = false;
  CHECK_EQ(thrown<ProtocolError>([&] { BatchCodec(other).decode(payload, std::span(&to.inputs, 1), images); }),
           std::string("num_prefixes 2 is outside 0 ... 0"));
  batch.num_prefixes = 0;
  BatchCodec(other).encode(batch, from.inputs, payload);
  CHECK_EQ(BatchCodec(other).decode(payload, std::span(&to.inputs, 1), images).num_prefixes, 0);
  CHECK_EQ(to.inputs.prefix_indptr[0], Lent(-1000).inputs.prefix_indptr[0]);
}

TEST(token_types_are_sent_only_where_they_are_taken) {
  Lent from(1000), to(-1000);
  DecodedImages images;
  Bytes payload;
  trn_forward_batch batch = fill(from);
  BatchCodec(facts()).encode(batch, from.inputs, payload);
  ModelFacts other = facts();
  other.num_token_types = 0;
  CHECK_EQ(thrown<ProtocolError>([&] { BatchCodec(other).decode(payload, std::span(&to.inputs, 1), images); }),
           std::string("has_token_types 1 is outside 0 ... 0"));
  batch.has_token_types = 0;
  BatchCodec(other).encode(batch, from.inputs, payload);
  CHECK_EQ(BatchCodec(other).decode(payload, std::span(&to.inputs, 1), images).has_token_types, 0);
  CHECK_EQ(to.inputs.token_type_ids[0], Lent(-1000).inputs.token_type_ids[0]);
}

TEST(messages_cross_a_socket_whole) {
  Pair pair;
  MessageSocket left(pair.ends[0], 0), right(pair.ends[1], 0);
  Bytes large(3 << 20);
  for (size_t i = 0; i < large.size(); ++i) large[i] = std::byte(i * 7 % 251);
  std::thread sender([&] {
    left.send(MessageType::kExecute, large);
    left.send(MessageType::kClose);
  });
  const Message first = right.receive(), second = right.receive();
  sender.join();
  CHECK(first.type == MessageType::kExecute && first.payload == large);
  CHECK(second.type == MessageType::kClose && second.payload.empty());
}

TEST(a_closed_connection_is_lost_and_garbage_is_no_message) {
  Pair pair;
  MessageSocket left(pair.ends[0], 0);
  const char garbage[64] = "GET / HTTP/1.1";
  CHECK_EQ(write(pair.ends[1], garbage, sizeof garbage), static_cast<ssize_t>(sizeof garbage));
  CHECK_EQ(thrown<ProtocolError>([&] { left.receive(); }), std::string("what it sends is no message of trunnion"));
  close(pair.ends[1]);
  CHECK(thrown<ConnectionLost>([&] {
          left.send(MessageType::kClose);
          left.send(MessageType::kClose);
        }) != "nothing was thrown");
}

TEST(who_does_not_read_is_lost_after_the_timeout) {
  Pair pair;
  MessageSocket left(pair.ends[0], 0.05);
  const Bytes large(64 << 20);
  CHECK_EQ(thrown<ConnectionLost>([&] { left.send(MessageType::kExecute, large); }),
           std::string("it does not read what it is sent"));
  close(pair.ends[1]);
}

TEST(only_connected_stream_sockets_are_taken) {
  int ends[2];
  CHECK_EQ(pipe(ends), 0);
  CHECK(thrown<std::invalid_argument>([&] { MessageSocket(ends[0], 0); }).find("is no connected stream socket") !=
        std::string::npos);
  close(ends[0]);
  close(ends[1]);
}

TEST(a_worker_executes_every_batch_of_its_host) {
  Pair pair;
  trn_host_options options = default_options();
  options.executor.tp_size = 2;
  trn_worker_options mine{sizeof mine, pair.ends[1], options.executor};
  mine.executor.tp_rank = 1;
  std::thread worker([mine] {
    char error[256] = "";
    const trn_status status = trn_worker_run(&mine, error, sizeof error);
    // Read by whoever looks at a failure of the host's own checks.
    if (status != TRN_OK) std::fprintf(stderr, "the worker: %s\n", error);
  });
  const auto prompts = random_prompts(5, 6, 30);
  std::vector<std::vector<int32_t>> outputs;
  {
    options.worker_sockets = &pair.ends[0];
    options.num_workers = 1;
    Host host(options);
    std::vector<uint64_t> ids;
    for (const auto& prompt : prompts) ids.push_back(host.submit(prompt, sampling()));
    auto ended = host.wait_all(prompts.size());
    for (const uint64_t id : ids) outputs.push_back(ended.at(id).tokens);
    trn_executor_stats stats{};
    stats.struct_size = sizeof stats;
    CHECK_EQ(trn_host_get_worker_stats(host.get(), 1, &stats), TRN_HOST_OK);
    CHECK_EQ(stats.executes, host.stats().steps);
    CHECK_EQ(trn_host_get_worker_stats(host.get(), 2, &stats), TRN_HOST_INVALID);
  }
  worker.join();
  CHECK(outputs == alone(prompts, sampling()));
}
