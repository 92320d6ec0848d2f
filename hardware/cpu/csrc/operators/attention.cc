// Paged attention, with rotary embedding on the way to the cache.
#include <algorithm>
#include <optional>
#include <vector>

#include "isa.h"
#include "scratch.h"
#include "tensors.h"
#include "threads.h"

namespace trunnion_cpu {
namespace {

constexpr int64_t kShared = 1 << 15;  // elements below which waking others costs more than it saves
constexpr int64_t kMinKeysPerPart = 128;
constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kPlanned = 5;   // fields of a planned request
constexpr int64_t kFewRows = 16;  // of one KV head: beyond, packing keys pays
constexpr int64_t kLeastTileRows = 4 * kTileRows;
constexpr int64_t kTileElements = 192 * 64;  // of an item's queries

const int32_t* ints_of(const Tensor& tensor, int64_t least, const char* what) {
  STD_TORCH_CHECK(tensor.scalar_type() == torch::headeronly::ScalarType::Int && tensor.is_contiguous(), what,
                  " is no dense int32 tensor");
  STD_TORCH_CHECK(tensor.numel() >= least, what, " has ", tensor.numel(), " values, expected at least ", least);
  return static_cast<const int32_t*>(tensor.data_ptr());
}

// [tokens, heads, head_dim]
struct Heads {
  Rows rows;
  int64_t tokens, heads, head_dim;

  Heads(const Tensor& tensor, const char* what) : rows(tensor) {
    STD_TORCH_CHECK(tensor.dim() == 3, what, " has ", tensor.dim(), " dimensions, expected [tokens, heads, head_dim]");
    tokens = tensor.size(0);
    heads = tensor.size(1);
    head_dim = tensor.size(2);
    STD_TORCH_CHECK(head_dim <= kMaxHeadDim, what, " has heads of ", head_dim, ", at most ", kMaxHeadDim);
  }
};

// [blocks, block_size, heads, head_dim], dense within a block.
struct Cache {
  int64_t blocks, block_size, block_stride;

  Cache(const Tensor& cache, int64_t heads, int64_t head_dim, Element element, const char* what) {
    STD_TORCH_CHECK(cache.dim() == 4 && element_of(cache, what) == element && cache.size(2) == heads &&
                        cache.size(3) == head_dim,
                    what, " is not [blocks, block_size, ", heads, ", ", head_dim, "] of k's dtype");
    blocks = cache.size(0);
    block_size = cache.size(1);
    block_stride = cache.stride(0);
    STD_TORCH_CHECK(cache.is_contiguous(), what, " is not dense");
  }
};

// Rows past the slots are padding: they are neither rotated nor written.
int64_t live_tokens(const Heads& k, const Tensor& slots) { return std::min(k.tokens, slots.numel()); }

RotateArgs write_arguments(const Heads& k, const Heads& v, const Tensor& slots, Tensor& k_cache, Tensor& v_cache) {
  const Element element = element_of(k.rows.tensor, "k");
  STD_TORCH_CHECK(v.tokens == k.tokens && v.heads == k.heads && v.head_dim == k.head_dim, "k and v differ in shape");
  const Cache keys(k_cache, k.heads, k.head_dim, element, "k_cache");
  const Cache values(v_cache, k.heads, k.head_dim, element_of(v.rows.tensor, "v"), "v_cache");
  const int32_t* slot = ints_of(slots, 0, "slots");
  const int64_t capacity = std::min(keys.blocks * keys.block_size, values.blocks * values.block_size);
  for (int64_t token = 0; token < live_tokens(k, slots); ++token) {
    STD_TORCH_CHECK(slot[token] < capacity, "slot ", slot[token], " of a cache of ", capacity);
  }
  RotateArgs args{};
  args.k = k.rows.places();
  args.v = v.rows.places();
  args.kv_heads = k.heads;
  args.head_dim = k.head_dim;
  args.slots = slot;
  args.k_cache = k_cache.mutable_data_ptr();
  args.v_cache = v_cache.mutable_data_ptr();
  args.element = element;
  return args;
}

void run(const RotateArgs& args, int64_t tokens) {
  const int64_t elements = tokens * (args.q_heads + 2 * args.kv_heads) * args.head_dim;
  share(tokens, elements < kShared ? 1 : num_threads(), kernels().rotate, args);
}

void write_cache(const Tensor& k, const Tensor& v, const Tensor& slots, Tensor k_cache, Tensor v_cache) {
  const Heads keys(k, "k"), values(v, "v");
  run(write_arguments(keys, values, slots, k_cache, v_cache), live_tokens(keys, slots));
}

Tensor rotate_and_write_cache(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& positions,
                              const Tensor& cos_sin, bool interleaved, std::vector<int64_t> section,
                              const Tensor& slots, Tensor k_cache, Tensor v_cache) {
  const Heads queries(q, "q"), keys(k, "k"), values(v, "v");
  RotateArgs args = write_arguments(keys, values, slots, k_cache, v_cache);
  STD_TORCH_CHECK(queries.tokens == keys.tokens && queries.head_dim == keys.head_dim &&
                      element_of(q, "q") == args.element,
                  "q and k differ in tokens, head_dim or dtype");
  args.axes = positions.dim() == 2 ? positions.size(1) : 1;
  const int64_t live = live_tokens(keys, slots);
  args.positions = ints_of(positions, live * args.axes, "positions");
  STD_TORCH_CHECK(section.empty() == (args.axes == 1), "positions of ", args.axes, " axes and a section of ",
                  section.size(), " runs");
  STD_TORCH_CHECK(cos_sin.dim() == 2 && cos_sin.is_contiguous() && element_of(cos_sin, "cos_sin") == Element::kFloat32,
                  "cos_sin is no dense float32 matrix");
  args.rotary_dim = cos_sin.size(1);
  STD_TORCH_CHECK(args.rotary_dim <= keys.head_dim && args.rotary_dim % 2 == 0, "rotary_dim ", args.rotary_dim,
                  " of heads of ", keys.head_dim);
  for (int64_t i = 0; i < live * args.axes; ++i) {
    STD_TORCH_CHECK(args.positions[i] >= 0 && args.positions[i] < cos_sin.size(0), "position ", args.positions[i],
                    " of a table of ", cos_sin.size(0));
  }
  args.cos_sin = static_cast<const float*>(cos_sin.data_ptr());
  args.section = section.empty() ? nullptr : section.data();
  args.num_sections = section.size();
  args.interleaved = interleaved;
  args.q = queries.rows.places();
  args.q_heads = queries.heads;
  const int64_t shape[] = {queries.tokens, queries.heads, queries.head_dim};
  Tensor rotated = torch::stable::new_empty(q, torch::headeronly::IntHeaderOnlyArrayRef(shape, 3));
  args.q_out = rotated.mutable_data_ptr();
  run(args, live);
  return rotated;
}

// Host tensors of a step -> per request: first row, rows, first and end key that any of them sees, own key of the
// first. Keys count from where the block table begins. Rows without a slot come last in a request: nobody else sees them.
Tensor plan_attention(const Tensor& query_start_loc, const Tensor& seq_lens, const Tensor& kv_start,
                      const Tensor& slots, int64_t num_reqs, int64_t window) {
  const int32_t* starts = ints_of(query_start_loc, num_reqs + 1, "query_start_loc");
  const int32_t* lens = ints_of(seq_lens, num_reqs, "seq_lens");
  const int32_t* dropped = ints_of(kv_start, num_reqs, "kv_start");
  const int32_t* slot = ints_of(slots, num_reqs > 0 ? starts[num_reqs] : 0, "slots");
  const int64_t shape[] = {num_reqs, kPlanned};
  Tensor plan = torch::stable::new_empty(seq_lens, torch::headeronly::IntHeaderOnlyArrayRef(shape, 2),
                                         torch::headeronly::ScalarType::Long);
  auto* field = static_cast<int64_t*>(plan.mutable_data_ptr());
  for (int64_t request = 0; request < num_reqs; ++request, field += kPlanned) {
    const int64_t first = starts[request], rows = starts[request + 1] - first;
    const int64_t end = lens[request] - dropped[request], own = end - rows;
    int64_t unwritten = 0;
    for (int64_t row = first; row < first + rows; ++row) unwritten += slot[row] < 0;
    field[0] = first;
    field[1] = rows;
    field[2] = window > 0 ? std::max<int64_t>(own - window + 1, 0) : 0;
    field[3] = std::max(end - unwritten, field[2]);
    field[4] = own;
  }
  return plan;
}

// Requests of a plan by how they are attended to.
struct Attended {
  std::vector<AttendRequest> few, many;
  int64_t work = 0;  // products of queries and keys, of one head
};

Attended requests_of(const Tensor& plan, const Tensor& block_table, int64_t tokens, int64_t group,
                     const Cache& cache) {
  STD_TORCH_CHECK(plan.dim() == 2 && plan.size(1) == kPlanned && plan.is_contiguous() &&
                      plan.scalar_type() == torch::headeronly::ScalarType::Long,
                  "plan is not what plan_attention makes");
  const int64_t count = plan.size(0);
  STD_TORCH_CHECK(block_table.dim() == 2 && block_table.size(0) >= count &&
                      block_table.scalar_type() == torch::headeronly::ScalarType::Int && block_table.stride(1) == 1,
                  "block_table is no int32 matrix with a row for each of ", count, " requests");
  const auto* field = static_cast<const int64_t*>(plan.data_ptr());
  const auto* table = static_cast<const int32_t*>(block_table.data_ptr());
  Attended found;
  for (int64_t i = 0; i < count; ++i, field += kPlanned) {
    STD_TORCH_CHECK(field[0] + field[1] <= tokens, "plan of another step: row ", field[0] + field[1], " of ", tokens);
    STD_TORCH_CHECK(field[3] <= block_table.size(1) * cache.block_size, "key ", field[3],
                    " is beyond the block table");
    if (field[1] == 0) continue;
    const AttendRequest request{
        table + i * block_table.stride(0), field[0], field[1], field[2], field[3], field[4], 0, 0};
    (request.num_rows * group > kFewRows ? found.many : found.few).push_back(request);
    found.work += request.num_rows * (field[3] - field[2]);
  }
  return found;
}

// Few rows: the keys of a request are cut into parts, which are put together afterwards.
void attend_few(std::vector<AttendRequest>& requests, AttendArgs args, int64_t threads) {
  if (requests.empty()) return;
  const int64_t group = args.q_heads / args.kv_heads;
  int64_t num_keys = 0, num_parts = 0;
  for (const AttendRequest& request : requests) {
    num_keys += request.end_key - request.first_key;
    args.most_rows = std::max(args.most_rows, request.num_rows * group);
  }
  const int64_t per_item = threads == 1 ? num_keys : num_keys * args.kv_heads / (threads * kItemsPerThread);
  args.keys_per_part = std::max(per_item, kMinKeysPerPart);
  for (AttendRequest& request : requests) {
    request.first_part = num_parts;
    request.num_parts = (request.end_key - request.first_key + args.keys_per_part - 1) / args.keys_per_part;
    num_parts += request.num_parts;
  }
  args.requests = requests.data();
  args.num_requests = requests.size();
  const int64_t elements = num_parts * args.kv_heads * args.most_rows * (args.head_dim + 2);
  args.parts = static_cast<float*>(Scratch::of(elements * sizeof(float)));
  share(num_parts * args.kv_heads, threads, kernels().attend, args);
  share(args.num_requests, 1, kernels().merge, args);
}

struct TileCall {
  void (*attend_tiles)(const AttendArgs& args, void* memory, int64_t first, int64_t last);
  const AttendArgs& args;
  int64_t bytes;
};

void attend_items(const TileCall& call, int64_t first, int64_t last) {
  call.attend_tiles(call.args, Scratch::of(call.bytes), first, last);
}

// Queries of one item: as many rows as a cache holds, fewer where threads would be left without an item.
int64_t queries_per_item(const AttendArgs& args, int64_t num_queries, int64_t threads) {
  const int64_t group = args.q_heads / args.kv_heads;
  const int64_t held = std::max(kTileElements / args.head_dim, kLeastTileRows);
  const int64_t shared = num_queries * group * args.kv_heads / (threads * kItemsPerThread);
  return std::max<int64_t>(std::clamp(shared, kLeastTileRows, held) / group, 1);
}

// Many rows: the queries of a request are cut into blocks.
void attend_many(const std::vector<AttendRequest>& requests, AttendArgs args, int64_t threads) {
  if (requests.empty()) return;
  int64_t num_queries = 0;
  for (const AttendRequest& request : requests) num_queries += request.num_rows;
  const int64_t at_once = queries_per_item(args, num_queries, threads);
  std::vector<AttendBlock> blocks;
  for (const AttendRequest& request : requests) {
    for (int64_t first = 0; first < request.num_rows; first += at_once) {
      const int64_t count = std::min(at_once, request.num_rows - first), own = request.own_key + first;
      const int64_t first_key = args.window > 0 ? std::max<int64_t>(own - args.window + 1, 0) : 0;
      blocks.push_back({request.table, request.first_row + first, count, first_key,
                        std::min(own + count, request.end_key), own});
    }
  }
  // The longest first, so that no thread is left with one at the end.
  std::sort(blocks.begin(), blocks.end(), [](const AttendBlock& a, const AttendBlock& b) {
    return a.num_queries * (a.end_key - a.first_key) > b.num_queries * (b.end_key - b.first_key);
  });
  args.blocks = blocks.data();
  const int64_t most_rows = at_once * (args.q_heads / args.kv_heads);
  const TileCall call{kernels().attend_tiles, args, tile_bytes(most_rows, args.head_dim)};
  share(blocks.size() * args.kv_heads, threads, attend_items, call);
}

void attend(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
            const Tensor& plan, double scale, int64_t window, double soft_cap, const std::optional<Tensor>& sinks,
            Tensor out) {
  const Heads queries(q, "q");
  const Element element = element_of(q, "q");
  STD_TORCH_CHECK(k_cache.dim() == 4 && k_cache.size(2) > 0 && queries.heads % k_cache.size(2) == 0, queries.heads,
                  " query heads cannot share the heads of k_cache evenly");
  const int64_t kv_heads = k_cache.size(2);
  const Cache keys(k_cache, kv_heads, queries.head_dim, element, "k_cache");
  const Cache values(v_cache, kv_heads, queries.head_dim, element, "v_cache");
  STD_TORCH_CHECK(out.is_contiguous() && out.numel() == q.numel() && element_of(out, "out") == element,
                  "out is no dense tensor of q's shape and dtype");
  if (sinks.has_value()) {
    STD_TORCH_CHECK(sinks->numel() == queries.heads && sinks->is_contiguous() &&
                        element_of(*sinks, "sinks") == Element::kFloat32,
                    "sinks are no ", queries.heads, " float32 values");
  }
  Attended requests = requests_of(plan, block_table, queries.tokens, queries.heads / kv_heads, keys);
  AttendArgs args{};
  args.q = queries.rows.places();
  args.k_cache = k_cache.data_ptr();
  args.v_cache = v_cache.data_ptr();
  args.k_block_stride = keys.block_stride;
  args.v_block_stride = values.block_stride;
  args.block_size = keys.block_size;
  args.q_heads = queries.heads;
  args.kv_heads = kv_heads;
  args.head_dim = queries.head_dim;
  args.scale = static_cast<float>(scale);
  args.soft_cap = static_cast<float>(soft_cap);
  args.window = window;
  args.sinks = sinks.has_value() ? static_cast<const float*>(sinks->data_ptr()) : nullptr;
  args.out = out.mutable_data_ptr();
  args.element = element;
  const int64_t threads = requests.work * queries.heads * queries.head_dim < kShared ? 1 : num_threads();
  attend_few(requests.few, args, threads);
  attend_many(requests.many, args, threads);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(trunnion_cpu, library) {
  library.def("write_cache(Tensor k, Tensor v, Tensor slots, Tensor(a!) k_cache, Tensor(b!) v_cache) -> ()");
  library.def(
      "rotate_and_write_cache(Tensor q, Tensor k, Tensor v, Tensor positions, Tensor cos_sin, bool interleaved,"
      " int[] section, Tensor slots, Tensor(a!) k_cache, Tensor(b!) v_cache) -> Tensor");
  library.def(
      "plan_attention(Tensor query_start_loc, Tensor seq_lens, Tensor kv_start, Tensor slots, int num_reqs,"
      " int window) -> Tensor");
  library.def(
      "attend(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor plan, float scale,"
      " int window, float soft_cap, Tensor? sinks, Tensor(a!) out) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) {
  library.impl("write_cache", TORCH_BOX(&write_cache));
  library.impl("rotate_and_write_cache", TORCH_BOX(&rotate_and_write_cache));
  library.impl("plan_attention", TORCH_BOX(&plan_attention));
  library.impl("attend", TORCH_BOX(&attend));
}

}  // namespace trunnion_cpu
