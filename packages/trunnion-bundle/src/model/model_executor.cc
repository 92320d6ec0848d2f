#include "model/model_executor.h"

#include <algorithm>
#include <cstring>

#include "steps/elements.h"

namespace trunnion::bundle {
namespace {

std::vector<int64_t> with_rows(std::vector<int64_t> dims, int axis, int64_t rows) {
  if (axis >= 0) dims[static_cast<size_t>(axis)] = rows;
  return dims;
}

void fill_row(Tensor& tensor, int64_t row, int axis, double value) {
  const auto at = static_cast<size_t>(axis);
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < tensor.dims.size(); ++i) {
    if (i < at) outer *= tensor.dims[i];
    if (i > at) inner *= tensor.dims[i];
  }
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) store(tensor, (o * tensor.dims[at] + row) * inner + i, value);
  }
}

// Rows from `rows` on, by the rule of the module's input.
void pad_rows(Tensor& tensor, int64_t rows, int axis, const PadRule& rule) {
  const int64_t size = tensor.dims[static_cast<size_t>(axis)];
  if (rows >= size) return;
  if (rule.kind == PadRule::Kind::kZero && axis == 0) {
    const size_t row_bytes = tensor.data.size() / static_cast<size_t>(size);
    std::memset(tensor.data.data() + static_cast<size_t>(rows) * row_bytes, 0, static_cast<size_t>(size - rows) * row_bytes);
    return;
  }
  for (int64_t row = rows; row < size; ++row) {
    if (rule.kind == PadRule::Kind::kRepeatRow) {
      // Within one tensor: the rows are apart.
      copy_rows(tensor, 0, tensor, row, 1, axis);
    } else {
      fill_row(tensor, row, axis, rule.kind == PadRule::Kind::kZero ? 0 : rule.value);
    }
  }
}

trn_engine_tensor view_of(const TensorSpec& spec, Tensor& tensor) {
  return trn_engine_tensor{.name = spec.name.c_str(),
                           .dtype = static_cast<trn_dtype>(tensor.dtype),
                           .num_dims = static_cast<int32_t>(tensor.dims.size()),
                           .dims = tensor.dims.data(),
                           .data = tensor.data.data(),
                           .num_bytes = tensor.data.size()};
}

}  // namespace

ModelExecutor::ModelExecutor(const ModuleSpec& module, const Program& program, std::unique_ptr<Engine> engine)
    : module_(module), program_(program), engine_(std::move(engine)) {}

Executor::Delivery ModelExecutor::execute(const Batch& batch, std::vector<BatchPart> parts) {
  auto values = std::make_shared<Values>(program_.num_slots());
  gather(batch, parts, *values);
  program_.run_before_module(*values);
  run_module(batch, *values);
  program_.run_after_module(*values);
  return [this, values, parts = std::move(parts)] { scatter(parts, *values); };
}

void ModelExecutor::gather(const Batch& batch, const std::vector<BatchPart>& parts, Values& values) const {
  for (const Slot& slot : program_.into_batch()) {
    const auto index = static_cast<size_t>(slot.index);
    const Tensor& first = parts[0].request->values[index];
    const int64_t room = program_.is_only_of_module(slot.index) ? batch.size : batch.rows;
    values[index] = make_tensor(first.dtype, with_rows(first.dims, slot.batch_axis, room));
    if (slot.batch_axis < 0) {
      std::memcpy(values[index].data.data(), first.data.data(), first.data.size());
      continue;
    }
    int64_t row = 0;
    for (const BatchPart& part : parts) {
      const Tensor& source = part.request->values[index];
      if (dims_without(source.dims, slot.batch_axis) != dims_without(first.dims, slot.batch_axis)) {
        throw std::logic_error("requests of two shapes are in one batch");
      }
      copy_rows(source, part.first, values[index], row, part.rows, slot.batch_axis);
      row += part.rows;
    }
  }
}

// The module's inputs with rows up to the batch's size. What other steps read too is copied, and stays as it is.
std::vector<Tensor*> ModelExecutor::pad_inputs(const Batch& batch, Values& values, std::deque<Tensor>& padded) const {
  std::vector<Tensor*> inputs;
  for (size_t i = 0; i < module_.inputs.size(); ++i) {
    const TensorSpec& spec = module_.inputs[i];
    Tensor* tensor = &values[static_cast<size_t>(program_.module_inputs()[i])];
    if (spec.batch_axis >= 0) {
      if (tensor->dims[static_cast<size_t>(spec.batch_axis)] < batch.size) {
        Tensor& larger = padded.emplace_back(make_tensor(tensor->dtype, with_rows(tensor->dims, spec.batch_axis, batch.size)));
        copy_rows(*tensor, 0, larger, 0, batch.rows, spec.batch_axis);
        tensor = &larger;
      }
      pad_rows(*tensor, batch.rows, spec.batch_axis, *spec.pad);
    }
    inputs.push_back(tensor);
  }
  return inputs;
}

ModelExecutor::Sizes ModelExecutor::check_inputs(const Batch& batch, const std::vector<Tensor*>& given) const {
  Sizes sizes{{"batch", batch.size}};
  for (size_t i = 0; i < module_.inputs.size(); ++i) {
    const TensorSpec& spec = module_.inputs[i];
    const Tensor& tensor = *given[i];
    for (size_t k = 0; k < spec.dims.size(); ++k) {
      const Dim& dim = spec.dims[k];
      int64_t wanted = dim.size;
      if (wanted == 0) {
        const auto [found, is_new] = sizes.emplace(dim.symbol, tensor.dims[k]);
        wanted = found->second;
        const Bounds bounds = dim.is_batch() ? Bounds{} : module_.symbols.at(dim.symbol);
        if (is_new && (wanted < bounds.min || wanted > bounds.max)) {
          throw InvalidRequest("the module takes " + std::to_string(bounds.min) + " ... " + std::to_string(bounds.max) +
                               " for " + dim.symbol + " of \"" + spec.name + "\", not " + std::to_string(wanted));
        }
      }
      if (tensor.dims[k] != wanted) {
        throw InvalidRequest("axis " + std::to_string(k) + " of the module's \"" + spec.name + "\" has " +
                             std::to_string(tensor.dims[k]) + " positions, expected " + std::to_string(wanted));
      }
    }
  }
  return sizes;
}

void ModelExecutor::run_module(const Batch& batch, Values& values) {
  std::deque<Tensor> padded;
  const std::vector<Tensor*> given = pad_inputs(batch, values, padded);
  const Sizes sizes = check_inputs(batch, given);
  std::vector<trn_engine_tensor> inputs, outputs;
  for (size_t i = 0; i < given.size(); ++i) inputs.push_back(view_of(module_.inputs[i], *given[i]));
  for (size_t i = 0; i < module_.outputs.size(); ++i) {
    const TensorSpec& spec = module_.outputs[i];
    std::vector<int64_t> dims;
    for (const Dim& dim : spec.dims) {
      const auto found = sizes.find(dim.symbol);
      if (dim.size == 0 && found == sizes.end()) throw std::logic_error("no input has the symbol " + dim.symbol);
      dims.push_back(dim.size > 0 ? dim.size : found->second);
    }
    Tensor& tensor = values[static_cast<size_t>(program_.module_outputs()[i])];
    tensor = make_tensor(spec.dtype, std::move(dims));
    outputs.push_back(view_of(spec, tensor));
  }
  engine_->infer(batch.runner, inputs, outputs);
  if (!program_.has_steps_after_module() || batch.rows == batch.size) return;
  for (size_t i = 0; i < module_.outputs.size(); ++i) {
    const int axis = module_.outputs[i].batch_axis;
    Tensor& tensor = values[static_cast<size_t>(program_.module_outputs()[i])];
    Tensor real = make_tensor(tensor.dtype, with_rows(tensor.dims, axis, batch.rows));
    copy_rows(tensor, 0, real, 0, batch.rows, axis);
    tensor = std::move(real);
  }
}

void ModelExecutor::scatter(const std::vector<BatchPart>& parts, const Values& values) const {
  int64_t row = 0;
  for (const BatchPart& part : parts) {
    Request& request = *part.request;
    for (const Slot& slot : program_.out_of_batch()) {
      const Tensor& source = values[static_cast<size_t>(slot.index)];
      Tensor& target = request.values[static_cast<size_t>(slot.index)];
      if (request.rows_left == request.rows) {
        target = make_tensor(source.dtype, with_rows(source.dims, slot.batch_axis, request.rows));
      }
      if (slot.batch_axis < 0) {
        std::memcpy(target.data.data(), source.data.data(), source.data.size());
      } else {
        copy_rows(source, row, target, part.first, part.rows, slot.batch_axis);
      }
    }
    row += part.rows;
    request.rows_left -= part.rows;
    if (request.rows_left > 0 || request.is_answered()) continue;
    try {
      program_.run_after_batch(request.values);
      request.answer({});
    } catch (const std::exception& error) {
      request.answer({Code::kFault, error.what()});
    }
  }
}

}  // namespace trunnion::bundle
