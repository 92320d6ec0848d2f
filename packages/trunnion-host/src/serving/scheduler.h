// Which tokens of which requests run in the next step: continuous batching, chunked prefill, preemption.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/event_queue.h"
#include "serving/image_rows.h"
#include "serving/kv_cache.h"
#include "serving/request.h"

namespace trunnion::serving {

struct BatchEntry {
  Request* request = nullptr;
  int32_t num_tokens = 0;   // rows, from position `begin` on
  bool wants_logits = false;  // the chunk reaches the newest token
  bool is_decode = false;
  bool is_admitted = false;  // it may have adopted blocks of other requests in this step
  int32_t encodes = -1;      // the image of the request that this step encodes, or none
  int32_t begin = 0;
  int32_t num_real = 0;    // leading rows; the others are placeholders, which fill a decode up to its uniform length
  int32_t num_drafts = 0;  // the last of the real rows; they want logits, as the row before them
  int32_t source_row = 0;  // of a draft: the row whose hidden state its first row takes

  int32_t num_logits() const { return wants_logits ? 1 + num_drafts : 0; }
};

// Decodes first, then prompts; both in order of arrival. With drafts in the step each decode has max_decode_query_len
// rows: its newest token, its drafts, placeholders; who has no room for so many runs one row, as a prompt would. A
// preempted request gives its blocks back and computes its tokens, output included, anew. A request whose consumer is
// behind is not scheduled, and is the first to be preempted.
// A chunk stops before an image that the encoder pool has no rows for now; others go on.
class Scheduler {
 public:
  Scheduler(const trn_limits& limits, KvCache& cache, const EventHub& hub);

  // Requests are the caller's and stay until remove().
  void add(Request& request);
  // Finished or cancelled: its blocks are free.
  void remove(Request& request);
  // The step before left its slots undefined: forget them and start over.
  void recompute(Request& request);

  // A step that was planned never runs: what it was to encode is not encoded.
  void forget(const BatchEntry& entry) { images_.forget(*entry.request, entry.encodes); }
  // Blocks are reserved ahead for the draft's own steps, where there are enough. 0 = nobody drafts.
  void set_num_drafts(int32_t num_drafts) { num_drafts_ = num_drafts; }

  // All tokens of a request come in one step; one that does not fit into what is left of it waits for the next.
  void set_whole_prompts(bool whole_prompts) { whole_prompts_ = whole_prompts; }

  // The next step, decodes first; empty when no request can run now. Valid until the next call.
  const std::vector<BatchEntry>& schedule();
  // A batch has run, or will have before the next one: advance and publish. To be called before tokens are appended.
  void complete(const std::vector<BatchEntry>& batch);
  // So many of its drafts in the step were right and are its tokens now.
  void accept(Request& request, int32_t num_accepted);
  // The draft has followed these requests: publish what both caches hold. A request that ended before has nothing more
  // to publish.
  void complete_drafts(const std::vector<BatchEntry>& followed);
  // A draft step with it has gone wrong.
  void undraft(Request& request);
  // How many tokens to draft for a request whose newest token has just been sampled.
  int32_t num_drafts_for(const Request& request) const;
  // To plan ahead of a batch's samples: requests that go on get a token to stand for theirs, those that end whatever it
  // is (all, if `all_end`) give back their blocks.
  void expect(const std::vector<BatchEntry>& batch, bool all_end);

  // True if an empty batch means waiting for consumers only.
  bool only_paused() const;
  const std::vector<Request*>& running() const { return running_; }
  const std::vector<Request*>& waiting() const { return waiting_; }
  uint64_t num_preemptions() const { return num_preemptions_; }
  uint64_t prefix_hit_tokens() const { return prefix_hit_tokens_; }
  const ImageRows& images() const { return images_; }
  ImageRows& images() { return images_; }

 private:
  void refresh_paused();
  // Requests of a failed step run one by one until each has sampled, so that only the one at fault fails again.
  bool schedule_suspect();
  void schedule_running(bool decodes);
  void schedule_waiting();
  // True if the request is in the step with a verification's rows.
  bool schedule_verification(Request& request);
  // Drafts are a luxury: nobody is preempted for the blocks that they take ahead.
  bool reserve_ahead(Request& request, int32_t num_tokens);
  void make_decodes_uniform();
  // Without room in the encoder pool for its images alone, others behind it may still be admitted.
  enum class Admission { kAdmitted, kNoRoom, kNoImageRows };
  Admission admit(Request& request);
  // Drop everything that is held, as if nothing were computed.
  void give_back(Request& request);
  int32_t next_chunk(const Request& request);
  // The same, as if no image needed encoding.
  int32_t widest_chunk(const Request& request) const;
  // Blocks for a chunk of at most `chunk` tokens, others preempted if need be; 0 when `request` itself had to go.
  int32_t reserve(Request& request, int32_t chunk);
  Request* pick_victim() const;
  Request* pick_paused_victim() const;
  void preempt(Request& victim);
  void unschedule(const Request& request);
  void schedule_chunk(Request& request, int32_t chunk);
  void add_entry(const BatchEntry& entry);
  void publish(Request& request);

  const trn_limits limits_;
  KvCache& cache_;
  const EventHub& hub_;
  ImageRows images_;
  std::vector<Request*> running_, waiting_;  // both in order of arrival
  std::vector<Request*> order_;              // scratch: running_ changes under preemption
  std::vector<BatchEntry> batch_;
  int32_t tokens_left_ = 0, rows_left_ = 0;
  int32_t num_drafts_ = 0;
  bool whole_prompts_ = false;
  bool verifying_ = false;  // a request that could run has drafts
  uint64_t num_preemptions_ = 0, prefix_hit_tokens_ = 0;
};

}  // namespace trunnion::serving
