// A step as bytes: its counts, the rows of the lent buffers that it uses, and its images, nothing beyond them.
#pragma once

#include <span>
#include <vector>

#include "distributed/model_facts.h"
#include "distributed/payload.h"

namespace trunnion::distributed {

// The images of a decoded step; their pixels are the payload's.
struct DecodedImages {
  struct View {
    int64_t shape[2];
    DLTensor pixels;
  };
  std::vector<View> views;
  std::vector<trn_encoder_item> items;
};

class BatchCodec {
 public:
  explicit BatchCodec(ModelFacts facts) : facts_(std::move(facts)) {}

  // `batch` has been validated and lies in the lent buffers `from`. Refused if it carries KV events.
  void encode(const trn_forward_batch& batch, const trn_input_buffers& from, Bytes& payload) const;

  // Fills the buffers of the set that the batch names, and `images`, which the batch refers to as it does to `payload`.
  // ProtocolError when it does not fit them.
  trn_forward_batch decode(std::span<const std::byte> payload, std::span<const trn_input_buffers> sets,
                           DecodedImages& images) const;

 private:
  void encode_images(const trn_forward_batch& batch, PayloadWriter& writer) const;
  void decode_images(PayloadReader& reader, DecodedImages& images, trn_forward_batch& batch) const;
  void decode_group(PayloadReader& reader, const GroupFacts& group, const trn_group_buffers& to,
                    const trn_forward_batch& batch) const;

  const ModelFacts facts_;
};

}  // namespace trunnion::distributed
