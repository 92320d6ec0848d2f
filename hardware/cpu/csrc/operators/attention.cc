// Paged attention, with rotary embedding on the way to the cache.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "isa.h"
#include "prepared.h"
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

// Where keys and values are written to, whatever the step; slots are a step's own.
struct Writes {
  RotateArgs args{};
  int64_t tokens, capacity;

  Writes(const Heads& k, const Heads& v, Tensor& k_cache, Tensor& v_cache) : tokens(k.tokens) {
    args.element = element_of(k.rows.tensor, "k");
    STD_TORCH_CHECK(v.tokens == k.tokens && v.heads == k.heads && v.head_dim == k.head_dim, "k and v differ in shape");
    const Cache keys(k_cache, k.heads, k.head_dim, args.element, "k_cache");
    const Cache values(v_cache, k.heads, k.head_dim, element_of(v.rows.tensor, "v"), "v_cache");
    capacity = std::min(keys.blocks * keys.block_size, values.blocks * values.block_size);
    args.k = k.rows.places();
    args.v = v.rows.places();
    args.kv_heads = k.heads;
    args.head_dim = k.head_dim;
    args.k_cache = k_cache.mutable_data_ptr();
    args.v_cache = v_cache.mutable_data_ptr();
  }
};

// The rotation of queries and keys on the way, whatever the step.
struct Rotation {
  std::vector<int64_t> section;
  int64_t num_positions = 0, table_rows = 0;

  void add_to(RotateArgs& args, const Heads& q, int64_t tokens, const Tensor& positions, const Tensor& cos_sin,
              bool interleaved) {
    STD_TORCH_CHECK(q.tokens == tokens && q.head_dim == args.head_dim && element_of(q.rows.tensor, "q") == args.element,
                    "q and k differ in tokens, head_dim or dtype");
    args.axes = positions.dim() == 2 ? positions.size(1) : 1;
    args.positions = ints_of(positions, 0, "positions");
    num_positions = positions.numel();
    STD_TORCH_CHECK(section.empty() == (args.axes == 1), "positions of ", args.axes, " axes and a section of ",
                    section.size(), " runs");
    STD_TORCH_CHECK(
        cos_sin.dim() == 2 && cos_sin.is_contiguous() && element_of(cos_sin, "cos_sin") == Element::kFloat32,
        "cos_sin is no dense float32 matrix");
    table_rows = cos_sin.size(0);
    args.rotary_dim = cos_sin.size(1);
    STD_TORCH_CHECK(args.rotary_dim <= args.head_dim && args.rotary_dim % 2 == 0, "rotary_dim ", args.rotary_dim,
                    " of heads of ", args.head_dim);
    args.cos_sin = static_cast<const float*>(cos_sin.data_ptr());
    args.num_sections = section.size();
    args.interleaved = interleaved;
    args.q = q.rows.places();
    args.q_heads = q.heads;
  }
};

// Rows past the slots are padding: they are neither rotated nor written.
void write(RotateArgs args, const Writes& writes, const Rotation& rotation, const int32_t* slots, int64_t num_slots,
           int64_t threads) {
  const int64_t live = std::min(writes.tokens, num_slots);
  args.slots = slots;
  args.section = rotation.section.empty() ? nullptr : rotation.section.data();
  for (int64_t token = 0; token < live; ++token) {
    STD_TORCH_CHECK(slots[token] < writes.capacity, "slot ", slots[token], " of a cache of ", writes.capacity);
  }
  if (args.positions != nullptr) {
    STD_TORCH_CHECK(rotation.num_positions >= live * args.axes, "positions has ", rotation.num_positions,
                    " values, expected at least ", live * args.axes);
    for (int64_t i = 0; i < live * args.axes; ++i) {
      STD_TORCH_CHECK(args.positions[i] >= 0 && args.positions[i] < rotation.table_rows, "position ",
                      args.positions[i], " of a table of ", rotation.table_rows);
    }
  }
  const int64_t elements = live * (args.q_heads + 2 * args.kv_heads) * args.head_dim;
  share(live, elements < kShared ? 1 : threads, kernels().rotate, args);
}

void write_cache(const Tensor& k, const Tensor& v, const Tensor& slots, Tensor k_cache, Tensor v_cache) {
  const Heads keys(k, "k"), values(v, "v");
  const Writes writes(keys, values, k_cache, v_cache);
  write(writes.args, writes, {}, ints_of(slots, 0, "slots"), slots.numel(), num_threads());
}

Tensor new_heads(const Tensor& like, const Heads& heads) {
  const int64_t shape[] = {heads.tokens, heads.heads, heads.head_dim};
  return new_tensor(like, shape, 3);
}

Tensor rotate_and_write_cache(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& positions,
                              const Tensor& cos_sin, bool interleaved, std::vector<int64_t> section,
                              const Tensor& slots, Tensor k_cache, Tensor v_cache) {
  const Heads queries(q, "q"), keys(k, "k"), values(v, "v");
  Writes writes(keys, values, k_cache, v_cache);
  Rotation rotation{std::move(section)};
  rotation.add_to(writes.args, queries, keys.tokens, positions, cos_sin, interleaved);
  Tensor rotated = new_heads(q, queries);
  writes.args.q_out = rotated.mutable_data_ptr();
  write(writes.args, writes, rotation, ints_of(slots, 0, "slots"), slots.numel(), num_threads());
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

// What a step tells attention: where its slots, its block table and its plan lie. Fields of an int64 tensor.
struct Step {
  const int32_t* slots;
  int64_t num_slots;
  const int32_t* table;
  int64_t table_stride, table_columns;
  const int64_t* plan;
  int64_t num_reqs;
  int64_t num_tokens;

  void set_requests(const Tensor& planned, const Tensor& block_table) {
    STD_TORCH_CHECK(planned.dim() == 2 && planned.size(1) == kPlanned && planned.is_contiguous() &&
                        planned.scalar_type() == torch::headeronly::ScalarType::Long,
                    "plan is not what plan_attention makes");
    num_reqs = planned.size(0);
    STD_TORCH_CHECK(block_table.dim() == 2 && block_table.size(0) >= num_reqs &&
                        block_table.scalar_type() == torch::headeronly::ScalarType::Int && block_table.stride(1) == 1,
                    "block_table is no int32 matrix with a row for each of ", num_reqs, " requests");
    plan = static_cast<const int64_t*>(planned.data_ptr());
    table = static_cast<const int32_t*>(block_table.data_ptr());
    table_stride = block_table.stride(0);
    table_columns = block_table.size(1);
  }
};
constexpr int64_t kStepFields = sizeof(Step) / sizeof(int64_t);
static_assert(sizeof(Step) == 8 * sizeof(int64_t));

Attended requests_of(const Step& step, int64_t tokens, int64_t group, int64_t block_size) {
  const int64_t* field = step.plan;
  Attended found;
  for (int64_t i = 0; i < step.num_reqs; ++i, field += kPlanned) {
    STD_TORCH_CHECK(field[0] + field[1] <= tokens, "plan of another step: row ", field[0] + field[1], " of ", tokens);
    STD_TORCH_CHECK(field[3] <= step.table_columns * block_size, "key ", field[3], " is beyond the block table");
    if (field[1] == 0) continue;
    const AttendRequest request{
        step.table + i * step.table_stride, field[0], field[1], field[2], field[3], field[4], 0, 0};
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

// Attention of one layer, whatever the step. `q` is where rotated queries lie.
AttendArgs attend_arguments(const Heads& queries, RowPlaces q, const Tensor& k_cache, const Tensor& v_cache,
                            double scale, int64_t window, double soft_cap, const std::optional<Tensor>& sinks,
                            Tensor& out) {
  const Element element = element_of(queries.rows.tensor, "q");
  STD_TORCH_CHECK(k_cache.dim() == 4 && k_cache.size(2) > 0 && queries.heads % k_cache.size(2) == 0, queries.heads,
                  " query heads cannot share the heads of k_cache evenly");
  const int64_t kv_heads = k_cache.size(2);
  const Cache keys(k_cache, kv_heads, queries.head_dim, element, "k_cache");
  const Cache values(v_cache, kv_heads, queries.head_dim, element, "v_cache");
  STD_TORCH_CHECK(out.is_contiguous() && out.numel() == queries.tokens * queries.heads * queries.head_dim &&
                      element_of(out, "out") == element,
                  "out is no dense tensor of q's shape and dtype");
  if (sinks.has_value()) {
    STD_TORCH_CHECK(sinks->numel() == queries.heads && sinks->is_contiguous() &&
                        element_of(*sinks, "sinks") == Element::kFloat32,
                    "sinks are no ", queries.heads, " float32 values");
  }
  AttendArgs args{};
  args.q = q;
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
  return args;
}

void attend_requests(const AttendArgs& args, const Step& step, int64_t tokens, int64_t threads) {
  Attended requests = requests_of(step, tokens, args.q_heads / args.kv_heads, args.block_size);
  if (requests.work * args.q_heads * args.head_dim < kShared) threads = 1;
  attend_few(requests.few, args, threads);
  attend_many(requests.many, args, threads);
}

void attend(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
            const Tensor& plan, double scale, int64_t window, double soft_cap, const std::optional<Tensor>& sinks,
            Tensor out) {
  const Heads queries(q, "q");
  const AttendArgs args =
      attend_arguments(queries, queries.rows.places(), k_cache, v_cache, scale, window, soft_cap, sinks, out);
  Step step{};
  step.set_requests(plan, block_table);
  attend_requests(args, step, queries.tokens, num_threads());
}

void set_step(Tensor step, const Tensor& plan, const Tensor& block_table, const Tensor& slots, int64_t num_tokens) {
  STD_TORCH_CHECK(step.scalar_type() == torch::headeronly::ScalarType::Long && step.is_contiguous() &&
                      step.numel() == kStepFields,
                  "step is no ", kStepFields, " int64 values");
  Step fields{};
  fields.set_requests(plan, block_table);
  fields.slots = ints_of(slots, 0, "slots");
  fields.num_slots = slots.numel();
  fields.num_tokens = num_tokens;
  std::memcpy(step.mutable_data_ptr(), &fields, sizeof fields);
}

// One layer's writes and attention of whatever step its fields name by then.
struct StepAttention {
  Writes writes;
  Rotation rotation;
  AttendArgs args;
  const Step* step;

  void operator()(int64_t threads) const {
    write(writes.args, writes, rotation, step->slots, step->num_slots, threads);
    attend_requests(args, *step, writes.tokens, threads);
    const int64_t row_bytes = args.q_heads * args.head_dim * element_bytes(args.element);
    const int64_t live = std::min(step->num_tokens, writes.tokens);
    std::memset(static_cast<char*>(args.out) + live * row_bytes, 0, (writes.tokens - live) * row_bytes);
  }
};

Tensor attend_step(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& positions,
                   const std::optional<Tensor>& cos_sin, bool interleaved, std::vector<int64_t> section,
                   const Tensor& step, Tensor k_cache, Tensor v_cache, double scale, int64_t window, double soft_cap,
                   const std::optional<Tensor>& sinks) {
  STD_TORCH_CHECK(step.scalar_type() == torch::headeronly::ScalarType::Long && step.numel() == kStepFields,
                  "step is not what set_step fills");
  STD_TORCH_CHECK(positions.has_value() == cos_sin.has_value(), "positions and cos_sin come together");
  const Heads queries(q, "q"), keys(k, "k"), values(v, "v");
  Writes writes(keys, values, k_cache, v_cache);
  Rotation rotation{std::move(section)};
  RowPlaces places = queries.rows.places();
  Tensor out = new_heads(q, queries);
  std::optional<Tensor> rotated;
  if (positions.has_value()) {
    rotation.add_to(writes.args, queries, keys.tokens, *positions, *cos_sin, interleaved);
    rotated = new_heads(q, queries);
    writes.args.q_out = rotated->mutable_data_ptr();
    const int64_t row = queries.heads * queries.head_dim;
    places = {rotated->data_ptr(), queries.heads, queries.head_dim, row};
  }
  const AttendArgs args =
      attend_arguments(queries, places, k_cache, v_cache, scale, window, soft_cap, sinks, out);
  const StepAttention call{std::move(writes), std::move(rotation), args, static_cast<const Step*>(step.data_ptr())};
  if (Program* program = Program::recording()) program->note(call);
  const NotRecorded within;
  call(num_threads());
  return out;
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
  library.def("set_step(Tensor(a!) step, Tensor plan, Tensor block_table, Tensor slots, int num_tokens) -> ()");
  library.def(
      "attend_step(Tensor q, Tensor k, Tensor v, Tensor? positions, Tensor? cos_sin, bool interleaved, int[] section,"
      " Tensor step, Tensor(a!) k_cache, Tensor(b!) v_cache, float scale, int window, float soft_cap, Tensor? sinks)"
      " -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(trunnion_cpu, CPU, library) {
  library.impl("write_cache", TORCH_BOX(&write_cache));
  library.impl("rotate_and_write_cache", TORCH_BOX(&rotate_and_write_cache));
  library.impl("plan_attention", TORCH_BOX(&plan_attention));
  library.impl("attend", TORCH_BOX(&attend));
  library.impl("set_step", TORCH_BOX(&set_step));
  library.impl("attend_step", TORCH_BOX(&attend_step));
}

}  // namespace trunnion_cpu
