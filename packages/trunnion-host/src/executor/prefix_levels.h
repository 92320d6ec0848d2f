// What a batch says of requests that share leading blocks.
#pragma once

#include "batch_reader.h"

namespace trunnion::executor {

/// REFUSED names the field, the value and the request. Costs nothing for a batch without ranges; the block tables and
/// lengths of the others have been checked.
void check_prefix_levels(const BatchView& batch, const Description& description, const trn_limits& limits);

/// Whether some range shares anything.
bool shares_blocks(const std::int32_t* prefix_lens, std::int64_t num_prefixes);

}  // namespace trunnion::executor
