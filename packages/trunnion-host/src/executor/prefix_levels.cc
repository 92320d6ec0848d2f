// Ranges of neighbours, and the block tables of each range held against its first request's.
#include "prefix_levels.h"

#include <algorithm>

#include "status.h"

namespace trunnion::executor {
namespace {

void check_ranges(const BatchView& batch) {
  const std::int32_t* bounds = batch.prefix_indptr;
  const std::int64_t num_prefixes = batch.counts.num_prefixes, num_reqs = batch.counts.num_reqs;
  if (bounds[0] != 0) refuse("prefix_indptr", "starts with ", bounds[0], ", expected 0");
  for (std::int64_t p = 0; p < num_prefixes; ++p) {
    if (bounds[p + 1] > bounds[p] && bounds[p + 1] <= num_reqs) continue;
    refuse("prefix_indptr", "entry ", p + 1, " is ", bounds[p + 1], ", expected ", std::int64_t{bounds[p]} + 1, " ... ",
           num_reqs, ": every range has a request");
  }
  if (bounds[num_prefixes] != num_reqs) {
    refuse("prefix_indptr", "ends with ", bounds[num_prefixes], ", expected num_reqs ", num_reqs);
  }
}

/// The leading `num_blocks` of the range's table rows in one cache group.
void check_tables(const BatchView& batch, const CacheGroup& group, std::size_t index, std::int64_t prefix,
                  std::int64_t num_blocks) {
  const std::int64_t first = batch.prefix_indptr[prefix];
  const auto row_of = [&](std::int64_t b) { return batch.groups[index].block_table + b * group.max_blocks_per_seq; };
  const std::int32_t* expected = row_of(first);
  for (std::int64_t b = first + 1; b < batch.prefix_indptr[prefix + 1]; ++b) {
    const std::int32_t* row = row_of(b);
    if (std::equal(expected, expected + num_blocks, row)) continue;
    const std::int64_t j = std::mismatch(expected, expected + num_blocks, row).first - expected;
    refuse("prefix_lens", "entry ", prefix, " is ", batch.prefix_lens[prefix], ", but request ", b, " has block ", row[j],
           " in column ", j, " of ", group_field(index, "block_table"), " where request ", first, " has ", expected[j]);
  }
}

void check_range(const BatchView& batch, const Description& description, const trn_limits& limits, std::int64_t prefix) {
  const std::int32_t shared = batch.prefix_lens[prefix];
  if (shared == 0) return;
  if (shared < 0 || shared % limits.block_size != 0) {
    refuse("prefix_lens", "entry ", prefix, " is ", shared, ", expected a multiple of ", limits.block_size,
           " (block_size), or 0");
  }
  for (std::int64_t b = batch.prefix_indptr[prefix]; b < batch.prefix_indptr[prefix + 1]; ++b) {
    const std::int32_t cached = first_place(batch, b);
    if (shared <= cached) continue;
    refuse("prefix_lens", "entry ", prefix, " is ", shared, ", but request ", b, " had ", cached,
           " tokens cached before this step");
  }
  for (std::size_t g = 0; g < description.groups.size(); ++g) {
    const CacheGroup& group = description.groups[g];
    const bool sees_all = group.kind == TRN_CACHE_FULL || group.kind == TRN_CACHE_MLA;
    if (sees_all) check_tables(batch, group, g, prefix, shared / group.block_size);
  }
}

}  // namespace

void check_prefix_levels(const BatchView& batch, const Description& description, const trn_limits& limits) {
  if (batch.counts.num_prefixes == 0) return;
  check_ranges(batch);
  for (std::int64_t p = 0; p < batch.counts.num_prefixes; ++p) check_range(batch, description, limits, p);
}

bool shares_blocks(const std::int32_t* prefix_lens, std::int64_t num_prefixes) {
  return std::any_of(prefix_lens, prefix_lens + num_prefixes, [](std::int32_t shared) { return shared > 0; });
}

}  // namespace trunnion::executor
