// A cache of two levels over contract.h: blocks leave by layers as they are written, and come back by layers while the
// step that needs them runs. Prints what it saw; exits with 1 at the first thing that is not so.
#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "trunnion/executor.hpp"

namespace {

using namespace std::chrono_literals;
using trunnion::Event;

constexpr int kBlock = 4, kPrompt = 19, kChunk = 7, kNew = 8, kLength = kPrompt + kNew;
constexpr int kColumns = (kLength + kBlock - 1) / kBlock, kNumBlocks = 40;

void expect(bool condition, const char* format, ...) {
  if (condition) return;
  std::fflush(stdout);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::exit(1);
}

/// Events of one step, a pair per layer; entries may be taken out.
struct StepEvents {
  explicit StepEvents(std::size_t num_layers) : ready(num_layers), written(num_layers) {
    for (const Event& event : ready) ready_handles.push_back(event.handle());
    for (const Event& event : written) written_handles.push_back(event.handle());
    view = {sizeof view, static_cast<int32_t>(num_layers), ready_handles.data(), written_handles.data(), 0};
  }
  void signal_ready() {
    for (Event& event : ready) event.signal();
  }
  std::size_t count(trn_event_state state) const {
    return static_cast<std::size_t>(
        std::count_if(written.begin(), written.end(), [&](const Event& event) { return event.query() == state; }));
  }

  std::vector<Event> ready, written;
  std::vector<trn_event*> ready_handles, written_handles;
  trn_kv_events view{};
};

/// Where the one request keeps its tokens: its blocks, or its state, of each cache group.
using Places = std::vector<std::vector<int32_t>>;

class Host {
 public:
  Host(const char* model, const char* hardware) : executor_(options(model, hardware)), groups_(executor_.kv_cache_spec()) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (int32_t layer = 0; layer < groups_[g].num_layers; ++layer) {
        group_of_.push_back(g);
        names_.push_back(groups_[g].layers[layer]);
      }
    }
    axes_ = executor_.model_info().num_position_axes;
    bind();
    executor_.warm_up();
    // Layers run in the order of the numbers in their names; the null executor's run group by group.
    order_.resize(group_of_.size());
    std::iota(order_.begin(), order_.end(), 0);
    if (std::strcmp(hardware, "null") != 0) {
      const auto number = [&](int layer) { return std::atoi(std::strpbrk(names_[layer].c_str(), "0123456789")); };
      std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) { return number(a) < number(b); });
    }
  }

  std::size_t num_layers() const { return group_of_.size(); }
  /// Layer numbers in the order of execution.
  const std::vector<int>& order() const { return order_; }
  trunnion::Executor& executor() { return executor_; }

  /// Room for one request, in blocks from `first` on.
  Places places(int32_t first) const {
    Places made;
    for (const auto& group : groups_) {
      std::vector<int32_t> blocks(group.kind == TRN_CACHE_RECURRENT ? 1 : kColumns);
      std::iota(blocks.begin(), blocks.end(), first);
      made.push_back(std::move(blocks));
    }
    return made;
  }

  /// Tokens [begin, end) of `tokens`: the output row of the last of them, logits or what a pooling model makes of it.
  std::vector<float> step(const std::vector<int32_t>& tokens, int begin, int end, const Places& places,
                          const trn_kv_events* events = nullptr) {
    trn_forward_batch batch = fill(tokens, begin, end, places);
    batch.kv_events = events;
    const trn_forward_output output = executor_.execute(batch);
    executor_.wait(output.fence);
    const float* row = output.logits != nullptr ? output.logits : output.pooled;
    return {row, row + executor_.model_info().output_width};
  }

  trn_forward_batch fill(const std::vector<int32_t>& tokens, int begin, int end, const Places& places) {
    const trn_input_buffers lent = executor_.input_buffers(0);
    for (int t = begin; t < end; ++t) {
      lent.input_ids[t - begin] = tokens[static_cast<std::size_t>(t)];
      // Text advances every axis alike.
      std::fill_n(lent.positions + (t - begin) * axes_, axes_, t);
      if (lent.encoder_indices != nullptr) lent.encoder_indices[t - begin] = -1;
    }
    lent.query_start_loc[0] = 0;
    lent.query_start_loc[1] = end - begin;
    lent.seq_lens[0] = end;
    lent.logits_indices[0] = end - begin - 1;
    for (std::size_t g = 0; g < groups_.size(); ++g) fill_group(lent.groups[g], groups_[g], begin, end, places[g]);
    trn_forward_batch batch = trunnion::Executor::batch();
    batch.num_tokens = batch.max_query_len = end - begin;
    batch.num_reqs = batch.num_logits = 1;
    batch.num_decodes = end - begin == 1 ? 1 : 0;
    batch.max_seq_len = end;
    return batch;
  }

  /// What one layer holds of the request, as bytes; and back, into other places.
  std::vector<uint8_t> save(int layer, const Places& places) {
    std::vector<uint8_t> saved;
    visit(layer, places, [&](uint8_t* block, std::size_t size) { saved.insert(saved.end(), block, block + size); });
    return saved;
  }
  void restore(int layer, const Places& places, const std::vector<uint8_t>& saved) {
    const uint8_t* from = saved.data();
    visit(layer, places, [&](uint8_t* block, std::size_t size) {
      std::memcpy(block, from, size);
      from += size;
    });
  }
  /// NaN, whatever float it is.
  void poison(const Places& places) {
    for (int layer : order_) visit(layer, places, [](uint8_t* block, std::size_t size) { std::memset(block, 0xff, size); });
  }

 private:
  static trn_create_options options(const char* model, const char* hardware) {
    trn_create_options options = trunnion::Executor::default_options();
    options.model = model;
    options.hardware = hardware;
    options.limits.max_num_tokens = 24;
    options.limits.max_num_seqs = 2;
    options.limits.max_model_len = 32;
    options.limits.max_logits_rows = 2;
    options.limits.block_size = kBlock;
    return options;
  }

  void bind() {
    std::vector<trn_cache_tensor> tensors;
    std::vector<std::vector<int64_t>> shapes;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (int32_t layer = 0; layer < groups_[g].num_layers; ++layer) {
        memory_.emplace_back();
        for (int32_t i = 0; i < groups_[g].num_tensors; ++i) {
          const trn_cache_tensor_spec& spec = groups_[g].tensors[i];
          memory_.back().emplace_back(static_cast<std::size_t>(spec.bytes_per_block * kNumBlocks));
          shapes.emplace_back(spec.shape, spec.shape + spec.ndim);
          shapes.back().insert(shapes.back().begin(), kNumBlocks);
          trn_cache_tensor tensor{static_cast<int32_t>(g), layer, spec.name, {}};
          tensor.tensor.data = memory_.back().back().data();
          tensor.tensor.device = {kDLCPU, 0};
          tensor.tensor.ndim = spec.ndim + 1;
          tensor.tensor.dtype = spec.dtype;
          tensors.push_back(tensor);
        }
      }
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].tensor.shape = shapes[i].data();
    executor_.bind_kv_cache(tensors);
  }

  static void fill_group(const trn_group_buffers& to, const trn_cache_group_spec& group, int begin, int end,
                         const std::vector<int32_t>& blocks) {
    if (group.kind == TRN_CACHE_RECURRENT) {
      to.state_indices[0] = blocks[0];
      to.has_initial_state[0] = begin > 0 ? 1 : 0;
      return;
    }
    const int live = (end + kBlock - 1) / kBlock;
    std::fill_n(to.block_table, group.max_blocks_per_seq, 0);
    std::copy_n(blocks.begin(), live, to.block_table);
    for (int t = begin; t < end; ++t) {
      to.slot_mapping[t - begin] = blocks[static_cast<std::size_t>(t / kBlock)] * kBlock + t % kBlock;
    }
    to.kv_start[0] = 0;
    if (to.kv_indptr == nullptr) return;
    to.kv_indptr[0] = 0;
    to.kv_indptr[1] = live;
    std::copy_n(blocks.begin(), live, to.kv_indices);
    to.kv_last_page_len[0] = end - (live - 1) * kBlock;
  }

  template <typename Visit>
  void visit(int layer, const Places& places, const Visit& call) {
    const std::size_t g = group_of_[static_cast<std::size_t>(layer)];
    for (int32_t i = 0; i < groups_[g].num_tensors; ++i) {
      const auto size = static_cast<std::size_t>(groups_[g].tensors[i].bytes_per_block);
      uint8_t* data = memory_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(i)].data();
      for (const int32_t block : places[g]) call(data + static_cast<std::size_t>(block) * size, size);
    }
  }

  // Before the executor, which reads them.
  std::vector<std::vector<std::vector<uint8_t>>> memory_;
  trunnion::Executor executor_;
  std::vector<trn_cache_group_spec> groups_;
  std::vector<std::size_t> group_of_;
  std::vector<std::string> names_;
  std::vector<int> order_;
  int32_t axes_ = 1;
};

int32_t best(const std::vector<float>& logits) {
  for (const float logit : logits) expect(logit == logit, "a logit is NaN: a layer has read what was not there yet");
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// A request, and the logits of each of its steps.
struct Text {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;

  void add(std::vector<float> row) {
    tokens.push_back(best(row));
    logits.push_back(std::move(row));
  }
};

Text prompt() {
  Text text;
  for (int t = 0; t < kPrompt; ++t) text.tokens.push_back((t * 37 + 11) % 101);
  return text;
}

void decode(Host& host, Text& text, const Places& places) {
  while (text.tokens.size() < kLength) {
    const int computed = static_cast<int>(text.tokens.size()) - 1;
    text.add(host.step(text.tokens, computed, computed + 1, places));
  }
}

using Store = std::vector<std::vector<uint8_t>>;

/// Prefill in two chunks; each layer of the second is saved by another thread as soon as it is written.
Store prefill_and_save(Host& host, Text& text, const Places& places) {
  host.step(text.tokens, 0, kChunk, places);
  Store store(host.num_layers());
  StepEvents events(host.num_layers());
  events.view.kv_ready = nullptr;
  std::thread saver([&] {
    for (const int layer : host.order()) {
      expect(events.written[static_cast<std::size_t>(layer)].wait(30s) == TRN_EVENT_DONE, "layer %d was not written", layer);
      store[static_cast<std::size_t>(layer)] = host.save(layer, places);
    }
  });
  text.add(host.step(text.tokens, kChunk, kPrompt, places, &events.view));
  saver.join();
  return store;
}

/// One decode in places that hold NaN: each layer comes back only when the one before it has written.
void decode_late(Host& host, Text& text, const Places& places, const Store& store) {
  StepEvents events(host.num_layers());
  std::thread restorer([&] {
    const Event* before = nullptr;
    for (const int layer : host.order()) {
      const auto l = static_cast<std::size_t>(layer);
      if (before != nullptr) {
        expect(trn_event_wait(before->handle(), 30'000'000'000) == TRN_EVENT_DONE, "the layer before %d was not written", layer);
      }
      std::this_thread::sleep_for(3ms);
      expect(events.written[l].query() == TRN_EVENT_PENDING, "layer %d did not wait", layer);
      expect(!events.written[l].signal() && !events.written[l].reset(), "an event of a running step was ours");
      host.restore(layer, places, store[l]);
      expect(events.ready[l].signal(), "kv_ready[%d] was signalled already", layer);
      before = &events.written[l];
    }
  });
  const int computed = static_cast<int>(text.tokens.size()) - 1;
  text.add(host.step(text.tokens, computed, computed + 1, places, &events.view));
  restorer.join();
  expect(events.count(TRN_EVENT_DONE) == host.num_layers(), "not all layers have written");
  for (Event& event : events.written) expect(event.reset(), "an event of a step that is over was not ours");
}

/// What a step with `events` throws, as "field|message".
template <typename Exception>
std::string thrown(Host& host, const trn_forward_batch& batch, const char* what) {
  try {
    host.executor().execute(batch);
  } catch (const Exception& error) {
    return error.field() + "|" + error.what();
  }
  expect(false, "%s went through", what);
  return "";
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// Every way to go wrong; after each of them the same decode is right again.
void fail_in_every_way(Host& host, const Text& text, const Places& places, const Store& store) {
  const std::size_t n = host.num_layers();
  const int computed = kPrompt;
  // A recurrent state has no second step of the same token: what the cache held comes back around each.
  const auto restore = [&] {
    for (const int layer : host.order()) host.restore(layer, places, store[static_cast<std::size_t>(layer)]);
  };
  const auto again = [&](const char* after) {
    restore();
    expect(host.step(text.tokens, computed, computed + 1, places) == text.logits[1], "a wrong step after %s", after);
    restore();
  };
  trn_forward_batch batch = host.fill(text.tokens, computed, computed + 1, places);
  again("nothing");
  {
    StepEvents events(n);
    const auto last = static_cast<std::size_t>(host.order().back());
    for (std::size_t l = 0; l < n; ++l) events.ready[l].signal(l == last ? TRN_FAILED : TRN_OK);
    batch.kv_events = &events.view;
    const std::string line = thrown<trunnion::Failed>(host, batch, "an error in kv_ready");
    expect(contains(line, "kv_ready") && contains(line, "error"), "%s", line.c_str());
    expect(events.count(TRN_EVENT_DONE) == n - 1 && events.written[last].query() == TRN_EVENT_ERROR, "one layer failed");
    again("an error");
  }
  {
    StepEvents events(n);
    const auto late = static_cast<std::size_t>(host.order().front());
    for (std::size_t l = 0; l < n; ++l) {
      if (l != late) events.ready[l].signal();
    }
    events.view.ready_timeout_ns = 20'000'000;
    batch.kv_events = &events.view;
    const std::string line = thrown<trunnion::Failed>(host, batch, "a kv_ready that never comes");
    expect(contains(line, "kv_ready") && contains(line, "in time"), "%s", line.c_str());
    expect(events.count(TRN_EVENT_ERROR) == n, "all layers failed");
    again("a timeout");
  }
  const auto refused = [&](StepEvents& events, const char* field) {
    batch.kv_events = &events.view;
    const std::string line = thrown<trunnion::Refused>(host, batch, field);
    expect(contains(line, field), "%s is not about %s", line.c_str(), field);
    expect(events.count(TRN_EVENT_PENDING) == 0, "somebody waits for a refused step: %s", field);
    again(field);
  };
  {
    StepEvents events(n + 1);
    refused(events, "kv_events.num_layers");
  }
  {
    StepEvents events(n);
    events.written[0].signal();
    refused(events, "kv_events.kv_written[0]");
    expect(events.written[0].query() == TRN_EVENT_DONE, "a signalled event was changed");
  }
  {
    StepEvents events(n);
    events.written_handles[n - 1] = events.written_handles[0];
    events.written[n - 1].signal();
    refused(events, ("kv_events.kv_written[" + std::to_string(n - 1) + "]").c_str());
  }
  {
    StepEvents events(n);
    batch.num_tokens = 99;
    refused(events, "num_tokens");
    batch.num_tokens = 1;
  }
  {
    StepEvents events(n);
    for (std::size_t l = 0; l < n; ++l) (l % 2 == 0 ? events.ready_handles : events.written_handles)[l] = nullptr;
    events.signal_ready();
    expect(host.step(text.tokens, computed, computed + 1, places, &events.view) == text.logits[1], "NULL entries");
    expect(events.count(TRN_EVENT_DONE) == (n + 1) / 2, "only what was handed over is signalled");
    restore();
  }
  {
    // Nobody waits for the layers of a step without tokens.
    StepEvents events(n);
    trn_forward_batch empty = trunnion::Executor::batch();
    host.executor().input_buffers(0).query_start_loc[0] = 0;
    empty.kv_events = &events.view;
    events.signal_ready();
    host.executor().wait(host.executor().execute(empty).fence);
    expect(events.count(TRN_EVENT_DONE) == n, "a step without tokens signals all");
    again("no tokens");
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int two_level_main(int argc, char** argv) {
  expect(argc >= 3, "usage: two_level MODEL HARDWARE");
  try {
    Host host(argv[1], argv[2]);
    const Places first = host.places(1), second = host.places(1 + kColumns), third = host.places(1 + 2 * kColumns);
    Text plain = prompt(), moved = prompt();
    host.step(plain.tokens, 0, kChunk, first);
    plain.add(host.step(plain.tokens, kChunk, kPrompt, first));
    decode(host, plain, first);
    const Store store = prefill_and_save(host, moved, second);
    host.poison(second);
    host.poison(third);
    decode_late(host, moved, third, store);
    decode(host, moved, third);
    expect(moved.tokens == plain.tokens, "the text is another one");
    expect(moved.logits == plain.logits, "the logits differ");
    expect(host.executor().stats().kv_event_steps == 2, "two steps had events");
    fail_in_every_way(host, plain, first, store);
    std::printf("tokens");
    for (std::size_t t = kPrompt; t < plain.tokens.size(); ++t) std::printf(" %d", plain.tokens[t]);
    std::printf("\nlayers %zu\nkv_event_steps %llu\n", host.num_layers(),
                static_cast<unsigned long long>(host.executor().stats().kv_event_steps));
  } catch (const trunnion::Error& error) {
    expect(false, "%s", error.what());
  }
  std::fflush(stdout);
  return 0;
}

#ifndef TWO_LEVEL_AS_LIBRARY
int main(int argc, char** argv) { return two_level_main(argc, argv); }
#endif
