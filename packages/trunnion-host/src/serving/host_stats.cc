#include "serving/host_stats.h"

#include <locale>
#include <sstream>

namespace trunnion::serving {
namespace {

const char* kind_name(trn_cache_kind kind) {
  switch (kind) {
    case TRN_CACHE_FULL: return "full";
    case TRN_CACHE_WINDOW: return "window";
    case TRN_CACHE_MLA: return "mla";
    case TRN_CACHE_RECURRENT: return "recurrent";
  }
  return "unknown";
}

// Between quotes in JSON.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::vector<std::pair<std::string, uint64_t>> eager_reasons(Executor& executor, const trn_executor_stats& figures) {
  std::vector<std::pair<std::string, uint64_t>> reasons;
  for (uint64_t i = 0; i < figures.num_eager_reasons; ++i) {
    reasons.push_back(executor.eager_reason(static_cast<int32_t>(i)));
  }
  return reasons;
}

void write_reasons(std::ostream& json, const std::vector<std::pair<std::string, uint64_t>>& reasons) {
  for (size_t i = 0; i < reasons.size(); ++i) {
    json << (i == 0 ? "" : ", ") << '"' << escaped(reasons[i].first) << "\": " << reasons[i].second;
  }
}

void write_array(std::ostream& json, const uint64_t* values, int32_t count) {
  for (int32_t i = 0; i < count; ++i) json << (i == 0 ? "" : ", ") << values[i];
}

}  // namespace

void HostStats::read(const KvCache& cache) {
  groups.resize(cache.groups().size());
  totals.blocks_total = totals.blocks_used = totals.blocks_cached = totals.blocks_peak = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const BlockPool& pool = cache.pool(g);
    groups[g] = {cache.groups()[g].kind, pool.num_total(), pool.num_used(), pool.num_cached(), pool.peak_used()};
    totals.blocks_total += groups[g].blocks_total;
    totals.blocks_used += groups[g].blocks_used;
    totals.blocks_cached += groups[g].blocks_cached;
    totals.blocks_peak += groups[g].blocks_peak;
  }
}

void HostStats::read(const ImageRows& images) {
  totals.images_encoded = images.num_encodes();
  totals.encodes_skipped = images.num_skipped();
  totals.encoder_rows_total = images.pool().num_rows();
  totals.encoder_rows_used = images.pool().num_used();
  totals.encoder_rows_peak = images.pool().peak_used();
}

trn_executor_stats HostStats::read(Executor& executor) {
  const trn_executor_stats figures = executor.stats();
  totals.execute_calls = figures.executes + figures.refused + figures.failed;
  totals.gil_entries = figures.gil_entries;
  totals.step_gil_entries = figures.step_gil_entries;
  totals.gil_wait_seconds = figures.gil_wait_seconds;
  totals.execute_seconds = figures.execute_seconds;
  totals.replays = figures.replays;
  totals.padded_tokens = figures.padded_tokens;
  totals.plan_calls = figures.plan_calls;
  totals.plan_seconds = figures.plan_seconds;
  totals.python_seconds = figures.python_seconds;
  totals.kv_event_steps = figures.kv_event_steps;
  totals.prefix_level_steps = figures.prefix_level_steps;
  totals.token_type_steps = figures.token_type_steps;
  if (totals.eager_steps == figures.eager_steps) return figures;
  totals.eager_steps = figures.eager_steps;
  eager = eager_reasons(executor, figures);
  return figures;
}

trn_executor_stats HostStats::read_draft(Executor& executor) {
  const trn_executor_stats figures = executor.stats();
  totals.draft_replays = figures.replays;
  if (totals.draft_eager_steps != figures.eager_steps) draft_eager = eager_reasons(executor, figures);
  totals.draft_eager_steps = figures.eager_steps;
  return figures;
}

std::string HostStats::to_json() const {
  std::ostringstream json;
  // A locale of the process would write decimal commas.
  json.imbue(std::locale::classic());
  json.precision(9);
  json << "{\"prefix_caching\": " << (totals.prefix_caching ? "true" : "false") << ", \"prefix_caching_off_reason\": \""
       << prefix_caching_off_reason << "\", \"prefix_levels_off_reason\": \"" << prefix_levels_off_reason
       << "\", \"steps\": " << totals.steps
       << ", \"execute_calls\": " << totals.execute_calls << ", \"refused_steps\": " << totals.refused_steps
       << ", \"failed_steps\": " << totals.failed_steps << ", \"prefill_tokens\": " << totals.prefill_tokens
       << ", \"decode_tokens\": " << totals.decode_tokens << ", \"output_tokens\": " << totals.output_tokens
       << ", \"prefill_seconds\": " << totals.prefill_seconds << ", \"decode_seconds\": " << totals.decode_seconds
       << ", \"prefix_hit_tokens\": " << totals.prefix_hit_tokens << ", \"preemptions\": " << totals.preemptions
       << ", \"blocks_total\": " << totals.blocks_total << ", \"blocks_used\": " << totals.blocks_used
       << ", \"blocks_cached\": " << totals.blocks_cached << ", \"blocks_peak\": " << totals.blocks_peak
       << ", \"images_encoded\": " << totals.images_encoded << ", \"encodes_skipped\": " << totals.encodes_skipped
       << ", \"encoder_rows_total\": " << totals.encoder_rows_total
       << ", \"encoder_rows_used\": " << totals.encoder_rows_used
       << ", \"encoder_rows_peak\": " << totals.encoder_rows_peak << ", \"kv_bytes\": " << totals.kv_bytes << ", \"running\": " << totals.running
       << ", \"waiting\": " << totals.waiting << ", \"gil_entries\": " << totals.gil_entries
       << ", \"step_gil_entries\": " << totals.step_gil_entries
       << ", \"gil_wait_seconds\": " << totals.gil_wait_seconds
       << ", \"execute_seconds\": " << totals.execute_seconds << ", \"replays\": " << totals.replays
       << ", \"eager_steps\": " << totals.eager_steps << ", \"padded_tokens\": " << totals.padded_tokens
       << ", \"overlapped_steps\": " << totals.overlapped_steps << ", \"dropped_plans\": " << totals.dropped_plans
       << ", \"dropped_rows\": " << totals.dropped_rows
       << ", \"plan_calls\": " << totals.plan_calls << ", \"plan_seconds\": " << totals.plan_seconds
       << ", \"python_seconds\": " << totals.python_seconds << ", \"kv_event_steps\": " << totals.kv_event_steps
       << ", \"prefix_level_steps\": " << totals.prefix_level_steps
       << ", \"token_type_steps\": " << totals.token_type_steps << ", \"num_drafts\": " << totals.num_drafts
       << ", \"verify_steps\": " << totals.verify_steps << ", \"draft_steps\": " << totals.draft_steps
       << ", \"failed_draft_steps\": " << totals.failed_draft_steps
       << ", \"drafted_tokens\": " << totals.drafted_tokens << ", \"accepted_tokens\": " << totals.accepted_tokens
       << ", \"draft_replays\": " << totals.draft_replays << ", \"draft_eager_steps\": " << totals.draft_eager_steps
       << ", \"drafted_at\": [";
  write_array(json, totals.drafted_at, totals.num_drafts);
  json << "], \"accepted_at\": [";
  write_array(json, totals.accepted_at, totals.num_drafts);
  json << "], \"eager\": {";
  write_reasons(json, eager);
  json << "}, \"draft_eager\": {";
  write_reasons(json, draft_eager);
  json << "}, \"groups\": [";
  for (size_t g = 0; g < groups.size(); ++g) {
    json << (g == 0 ? "" : ", ") << "{\"kind\": \"" << kind_name(groups[g].kind)
         << "\", \"blocks_total\": " << groups[g].blocks_total << ", \"blocks_used\": " << groups[g].blocks_used
         << ", \"blocks_cached\": " << groups[g].blocks_cached << ", \"blocks_peak\": " << groups[g].blocks_peak << "}";
  }
  json << "]}";
  return json.str();
}

}  // namespace trunnion::serving
