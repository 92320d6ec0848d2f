#include "serving/scheduler.h"

#include <algorithm>
#include <cassert>

namespace trunnion::serving {
namespace {

void insert_by_arrival(std::vector<Request*>& requests, Request& request) {
  const auto later = [](const Request* a, const Request* b) { return a->id < b->id; };
  requests.insert(std::upper_bound(requests.begin(), requests.end(), &request, later), &request);
}

bool contains(const std::vector<Request*>& requests, const Request& request) {
  return std::find(requests.begin(), requests.end(), &request) != requests.end();
}

Request* youngest(const std::vector<Request*>& requests, bool paused_only) {
  for (auto request = requests.rbegin(); request != requests.rend(); ++request) {
    if (!paused_only || (*request)->paused) return *request;
  }
  return nullptr;
}

}  // namespace

Scheduler::Scheduler(const trn_limits& limits, KvCache& cache, const EventHub& hub)
    : limits_(limits), cache_(cache), hub_(hub), images_(limits.max_encoder_rows) {
  batch_.reserve(static_cast<size_t>(limits.max_num_seqs));
}

void Scheduler::add(Request& request) { insert_by_arrival(waiting_, request); }

void Scheduler::remove(Request& request) {
  give_back(request);
  std::erase(running_, &request);
  std::erase(waiting_, &request);
}

void Scheduler::recompute(Request& request) {
  cache_.unpublish(request.blocks);
  give_back(request);
  std::erase(running_, &request);
  std::erase(waiting_, &request);
  insert_by_arrival(waiting_, request);
}

void Scheduler::give_back(Request& request) {
  cache_.release(request.blocks);
  images_.release(request);
  request.forget_caches();
}

const std::vector<BatchEntry>& Scheduler::schedule() {
  batch_.clear();
  images_.begin_step();
  tokens_left_ = limits_.max_num_tokens;
  rows_left_ = limits_.max_logits_rows;
  const uint64_t preemptions_before = num_preemptions_;
  refresh_paused();
  verifying_ = std::any_of(running_.begin(), running_.end(),
                           [](const Request* request) { return !request->paused && !request->drafts.empty(); });
  if (schedule_suspect()) return batch_;
  schedule_running(true);
  schedule_running(false);
  // What a preemption has just freed belongs to the requests that run, not to the next one in line.
  if (num_preemptions_ == preemptions_before) schedule_waiting();
  if (verifying_) make_decodes_uniform();
  std::stable_partition(batch_.begin(), batch_.end(), [](const BatchEntry& entry) { return entry.is_decode; });
  return batch_;
}

// Once per step, so that one request is not paused for one decision and ready for the next.
void Scheduler::refresh_paused() {
  for (auto* requests : {&running_, &waiting_}) {
    for (Request* request : *requests) request->paused = hub_.full(*request->channel, request->token_pending);
  }
}

bool Scheduler::schedule_suspect() {
  const auto suspect = [](const Request* request) {
    return request->failed_before && !request->paused && !request->token_pending;
  };
  const auto running = std::find_if(running_.begin(), running_.end(), suspect);
  if (running != running_.end()) {
    Request& request = **running;
    const int32_t wanted = next_chunk(request);
    const int32_t chunk = wanted > 0 ? reserve(request, wanted) : 0;
    if (chunk > 0) schedule_chunk(request, chunk);
    return !batch_.empty();
  }
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), suspect);
  // When others hold the blocks or the seats it comes back with the rest.
  return waiting != waiting_.end() && admit(**waiting) == Admission::kAdmitted;
}

void Scheduler::schedule_running(bool decodes) {
  order_ = running_;
  for (Request* request : order_) {
    if (request->paused || request->decoding() != decodes || !contains(running_, *request)) continue;
    if (verifying_ && decodes && schedule_verification(*request)) continue;
    const int32_t wanted = next_chunk(*request);
    if (wanted == 0) continue;
    const int32_t chunk = reserve(*request, wanted);
    if (chunk > 0) schedule_chunk(*request, chunk);
  }
}

bool Scheduler::schedule_verification(Request& request) {
  const int32_t rows = 1 + num_drafts_;
  if (static_cast<int32_t>(batch_.size()) >= limits_.max_num_seqs || tokens_left_ < rows || rows_left_ < 1) return false;
  if (request.num_computed + rows > limits_.max_model_len) return false;
  if (cache_.widest_chunk(request.num_computed, rows) < rows || !reserve_ahead(request, rows)) return false;
  // No more were drafted than it may still output.
  const int32_t num_drafts = std::min(static_cast<int32_t>(request.drafts.size()), rows_left_ - 1);
  add_entry({.request = &request, .num_tokens = rows, .wants_logits = true, .is_decode = true,
             .begin = request.num_computed, .num_real = 1 + num_drafts, .num_drafts = num_drafts});
  return true;
}

bool Scheduler::reserve_ahead(Request& request, int32_t num_tokens) {
  const int32_t longest = std::min(num_tokens + num_drafts_ - 1, limits_.max_model_len - request.num_computed);
  const int32_t ahead = cache_.widest_chunk(request.num_computed, longest);
  return cache_.reserve(request.blocks, request.num_computed, ahead) ||
         cache_.reserve(request.blocks, request.num_computed, num_tokens);
}

void Scheduler::make_decodes_uniform() {
  const bool drafted =
      std::any_of(batch_.begin(), batch_.end(), [](const BatchEntry& entry) { return entry.num_drafts > 0; });
  for (BatchEntry& entry : batch_) {
    if (!entry.is_decode) continue;
    if (drafted) entry.is_decode = entry.num_tokens > 1;
    else entry.num_tokens = entry.num_real = 1;
  }
}

void Scheduler::schedule_waiting() {
  order_ = waiting_;
  for (Request* request : order_) {
    if (request->paused) continue;
    if (admit(*request) == Admission::kNoRoom) return;
  }
}

Scheduler::Admission Scheduler::admit(Request& request) {
  const auto active = std::count_if(running_.begin(), running_.end(), [](const Request* r) { return !r->paused; });
  if (active >= limits_.max_num_seqs || widest_chunk(request) == 0) return Admission::kNoRoom;
  if (cache_.prefix_caching()) {
    extend_keys(request.keys, request.tokens, request.images, cache_.block_size(), request.types);
  }
  const int32_t num_hit = cache_.match(request.keys, request.tokens);
  cache_.adopt(request.blocks, request.keys, request.tokens, num_hit);
  request.num_computed = num_hit * cache_.block_size();

  int32_t chunk = images_.must_queue(request) ? 0 : next_chunk(request);
  const bool lacks_image_rows = chunk == 0 && widest_chunk(request) > 0;
  bool reserved = chunk > 0 && cache_.reserve(request.blocks, request.num_computed, chunk);
  while (chunk > 0 && !reserved) {
    if (Request* victim = pick_paused_victim()) {
      preempt(*victim);
    } else if (running_.empty() && chunk > 1 && !whole_prompts_) {
      // Nobody will give blocks back: a shorter chunk is the only way on.
      chunk /= 2;
    } else {
      break;
    }
    reserved = cache_.reserve(request.blocks, request.num_computed, chunk);
  }
  if (!reserved) {
    give_back(request);
    return lacks_image_rows ? Admission::kNoImageRows : Admission::kNoRoom;
  }
  images_.count_skipped(request);
  prefix_hit_tokens_ += static_cast<uint64_t>(request.num_computed);
  if (request.num_cached_tokens < 0) request.num_cached_tokens = request.num_computed;
  std::erase(waiting_, &request);
  insert_by_arrival(running_, request);
  schedule_chunk(request, chunk);
  batch_.back().is_admitted = true;
  return Admission::kAdmitted;
}

int32_t Scheduler::next_chunk(const Request& request) {
  const int32_t chunk = images_.reach(request, widest_chunk(request));
  return whole_prompts_ && chunk < request.num_uncomputed() ? 0 : chunk;
}

int32_t Scheduler::widest_chunk(const Request& request) const {
  if (static_cast<int32_t>(batch_.size()) >= limits_.max_num_seqs) return 0;
  const int32_t wanted = std::min(request.num_uncomputed(), tokens_left_);
  const int32_t chunk = cache_.widest_chunk(request.num_computed, wanted);
  // Without a row left for its logits the last token stays for the next step.
  return chunk == request.num_uncomputed() && rows_left_ == 0 ? chunk - 1 : chunk;
}

int32_t Scheduler::reserve(Request& request, int32_t chunk) {
  while (!cache_.reserve(request.blocks, request.num_computed, chunk)) {
    Request* victim = pick_victim();
    if (victim == &request && running_.size() == 1 && chunk > 1) {
      chunk /= 2;
      continue;
    }
    preempt(*victim);
    if (victim == &request) return 0;
  }
  return chunk;
}

Request* Scheduler::pick_victim() const {
  Request* paused = pick_paused_victim();
  return paused != nullptr ? paused : youngest(running_, false);
}

Request* Scheduler::pick_paused_victim() const { return youngest(running_, true); }

void Scheduler::preempt(Request& victim) {
  unschedule(victim);
  give_back(victim);
  ++victim.num_preemptions;
  ++num_preemptions_;
  std::erase(running_, &victim);
  insert_by_arrival(waiting_, victim);
}

void Scheduler::unschedule(const Request& request) {
  const auto found = std::find_if(batch_.begin(), batch_.end(),
                                  [&](const BatchEntry& entry) { return entry.request == &request; });
  if (found == batch_.end()) return;
  tokens_left_ += found->num_tokens;
  rows_left_ += found->num_logits();
  batch_.erase(found);
}

void Scheduler::schedule_chunk(Request& request, int32_t chunk) {
  const bool wants_logits = chunk == request.num_uncomputed();
  if (wants_logits && num_drafts_ > 0) reserve_ahead(request, chunk);
  add_entry({.request = &request, .num_tokens = chunk, .wants_logits = wants_logits, .is_decode = request.decoding(),
             .encodes = images_.take(request, chunk), .begin = request.num_computed, .num_real = chunk});
}

void Scheduler::add_entry(const BatchEntry& entry) {
  batch_.push_back(entry);
  tokens_left_ -= entry.num_tokens;
  rows_left_ -= entry.num_logits();
}

void Scheduler::complete(const std::vector<BatchEntry>& batch) {
  cache_.mark();
  for (const BatchEntry& entry : batch) {
    if (entry.request == nullptr) continue;
    Request& request = *entry.request;
    request.num_computed += entry.num_real - entry.num_drafts;
    request.num_accepted = 1;
    assert(request.num_computed <= request.num_tokens() && "computed more tokens than there are");
    images_.release_computed(request);
    // With a draft not before it has followed, in complete_drafts().
    if (num_drafts_ == 0) publish(request);
  }
}

void Scheduler::complete_drafts(const std::vector<BatchEntry>& followed) {
  for (const BatchEntry& entry : followed) publish(*entry.request);
}

void Scheduler::publish(Request& request) {
  if (cache_.prefix_caching()) {
    extend_keys(request.keys, request.tokens, request.images, cache_.block_size(), request.types);
  }
  cache_.publish(request.blocks, request.keys, request.tokens, request.num_computed);
}

void Scheduler::accept(Request& request, int32_t num_accepted) {
  request.num_computed += num_accepted;
  request.num_accepted = 1 + num_accepted;
  assert(request.num_uncomputed() == 1 && "all but the newest token have been computed");
}

void Scheduler::undraft(Request& request) {
  // What has been published so far the draft has followed; the failed step's rows lie in blocks behind that.
  request.drafts.clear();
  request.undrafted = true;
}

int32_t Scheduler::num_drafts_for(const Request& request) const {
  // There would be no room for the rows of a verification.
  if (!request.decoding() || request.num_computed + 1 + num_drafts_ > limits_.max_model_len) return 0;
  const int32_t may_output = request.max_total_tokens - request.num_tokens();
  // The first comes from a row that is there already; each other one takes a place in the draft's cache.
  const int32_t room = cache_.capacity(request.blocks) - request.num_computed + 1;
  return std::clamp(std::min(may_output - 1, room), 0, num_drafts_);
}

void Scheduler::expect(const std::vector<BatchEntry>& batch, bool all_end) {
  for (const BatchEntry& entry : batch) {
    if (entry.request == nullptr || !entry.wants_logits) continue;
    if (all_end || entry.request->num_tokens() + 1 >= entry.request->max_total_tokens) {
      cache_.release(entry.request->blocks);
      std::erase(running_, entry.request);
    } else {
      entry.request->expect_token();
    }
  }
}

bool Scheduler::only_paused() const {
  const auto paused = [](const Request* request) { return request->paused; };
  return std::all_of(running_.begin(), running_.end(), paused) &&
         std::all_of(waiting_.begin(), waiting_.end(), paused);
}

}  // namespace trunnion::serving
