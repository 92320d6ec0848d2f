// A step as bytes: its counts and the rows of the lent buffers that it uses, nothing beyond them.
#pragma once

#include <span>

#include "distributed/model_facts.h"
#include "distributed/payload.h"

namespace trunnion::distributed {

class BatchCodec {
 public:
  explicit BatchCodec(ModelFacts facts) : facts_(std::move(facts)) {}

  // `batch` has been validated and lies in the lent buffers `from`. Refused if it carries KV events.
  void encode(const trn_forward_batch& batch, const trn_input_buffers& from, Bytes& payload) const;

  // Fills the buffers of the set that the batch names. ProtocolError when it does not fit them.
  trn_forward_batch decode(std::span<const std::byte> payload, std::span<const trn_input_buffers> sets) const;

 private:
  void decode_group(PayloadReader& reader, const GroupFacts& group, const trn_group_buffers& to,
                    const trn_forward_batch& batch) const;

  const ModelFacts facts_;
};

}  // namespace trunnion::distributed
