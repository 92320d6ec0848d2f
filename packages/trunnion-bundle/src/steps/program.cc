#include "steps/program.h"

#include <algorithm>
#include <map>

namespace trunnion::bundle {
namespace {

ValueType type_of(const TensorSpec& tensor) {
  return ValueType{tensor.dtype, tensor.dims, tensor.batch_axis, tensor.index_range};
}

void add_once(std::vector<Slot>& slots, Slot slot) {
  const auto found = std::find_if(slots.begin(), slots.end(), [&](const Slot& other) { return other.index == slot.index; });
  if (found == slots.end()) slots.push_back(slot);
}

// Whether every size that `dim` of a signature can have is one that `limit` of a module takes.
bool fits(const Dim& dim, const Dim& limit, const Symbols& symbols, const Symbols& limits) {
  if (limit.size > 0 || dim.is_batch() || limit.is_batch()) return dim == limit;
  const Bounds ends = dim.size > 0 ? Bounds{dim.size, dim.size} : symbols.at(dim.symbol);
  const Bounds most = limits.at(limit.symbol);
  return most.min <= ends.min && ends.max <= most.max;
}

}  // namespace

Program::Program(const SignatureSpec& signature, const ModuleSpec& module, const std::string& place,
                 const OperatorContext& context) {
  for (const TensorSpec& input : signature.inputs) add_value(input.name, type_of(input), Origin::kRequest);
  bool after_module = false;
  for (size_t i = 0; i < signature.steps.size(); ++i) {
    const StepSpec& spec = signature.steps[i];
    const std::string step_place = place + ".steps[" + std::to_string(i) + "]";
    if (spec.op == "module") {
      add_module(spec, module, context.symbols, step_place);
      after_module = true;
      continue;
    }
    Step step;
    std::vector<ValueType> inputs;
    for (const std::string& name : spec.inputs) {
      step.inputs.push_back(slot_of(name));
      inputs.push_back(types_[static_cast<size_t>(step.inputs.back())]);
    }
    step.op = make_operator(spec, inputs, step_place, context);
    if (step.op.outputs.size() != spec.outputs.size()) {
      throw BundleError(step_place + ": " + spec.op + " has " + std::to_string(step.op.outputs.size()) +
                        " outputs, the step names " + std::to_string(spec.outputs.size()));
    }
    note_reads(step.inputs, !spec.is_request, after_module);
    for (size_t k = 0; k < spec.outputs.size(); ++k) {
      step.outputs.push_back(static_cast<int>(std::ssize(names_)));
      const Origin origin = !spec.is_request ? Origin::kBatch : after_module ? Origin::kAfter : Origin::kRequest;
      add_value(spec.outputs[k], step.op.outputs[k], origin);
    }
    auto& steps = spec.is_request ? (after_module ? request_after_ : request_before_)
                                  : (after_module ? batch_after_ : batch_before_);
    steps.push_back(std::move(step));
  }
  for (const TensorSpec& output : signature.outputs) {
    outputs_.push_back(slot_of(output.name));
    check_output(output, outputs_.back(), place);
  }
  note_reads(outputs_, false, true);
}

void Program::check_output(const TensorSpec& output, int slot, const std::string& place) const {
  const ValueType& type = types_[static_cast<size_t>(slot)];
  if (type.dtype == output.dtype && type.dims == output.dims) return;
  throw BundleError(place + ".outputs: \"" + output.name + "\" is " + name_of(output.dtype) + " " + text_of(output.dims) +
                    ", its value is " + name_of(type.dtype) + " " + text_of(type.dims));
}

void Program::add_value(const std::string& name, const ValueType& type, Origin origin) {
  names_.push_back(name);
  types_.push_back(type);
  origins_.push_back(origin);
}

int Program::slot_of(const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) throw BundleError("no step makes the value \"" + name + "\"");
  return static_cast<int>(found - names_.begin());
}

void Program::add_module(const StepSpec& step, const ModuleSpec& module, const Symbols& symbols, const std::string& place) {
  if (step.inputs.size() != module.inputs.size() || step.outputs.size() != module.outputs.size()) {
    throw BundleError(place + " has " + std::to_string(step.inputs.size()) + " inputs and " +
                      std::to_string(step.outputs.size()) + " outputs, the module has " +
                      std::to_string(module.inputs.size()) + " and " + std::to_string(module.outputs.size()));
  }
  // What each dim of the module is in this signature.
  std::map<std::string, Dim> bound;
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    const TensorSpec& wanted = module.inputs[i];
    module_inputs_.push_back(slot_of(step.inputs[i]));
    check_module_input(wanted, module_inputs_.back(), place);
    const std::vector<Dim>& dims = types_[static_cast<size_t>(module_inputs_.back())].dims;
    for (size_t k = 0; k < dims.size(); ++k) {
      const Dim& limit = wanted.dims[k];
      const bool is_equal = limit.size > 0 || bound.emplace(limit.symbol, dims[k]).first->second == dims[k];
      if (fits(dims[k], limit, symbols, module.symbols) && is_equal) continue;
      throw BundleError(place + ": \"" + step.inputs[i] + "\" has dims " + text_of(dims) + ", the module takes " + text_of(wanted.dims));
    }
  }
  note_reads(module_inputs_, true, false);
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    module_outputs_.push_back(static_cast<int>(std::ssize(names_)));
    ValueType type = type_of(module.outputs[i]);
    for (Dim& dim : type.dims) {
      if (const auto found = bound.find(dim.symbol); dim.size == 0 && found != bound.end()) dim = found->second;
    }
    add_value(step.outputs[i], type, Origin::kBatch);
  }
}

void Program::check_module_input(const TensorSpec& wanted, int slot, const std::string& place) const {
  const ValueType& type = types_[static_cast<size_t>(slot)];
  const std::string what = place + ": \"" + names_[static_cast<size_t>(slot)] + "\" for the module's \"" + wanted.name + "\" ";
  if (type.dtype != wanted.dtype) {
    throw BundleError(what + "is " + name_of(type.dtype) + ", expected " + name_of(wanted.dtype));
  }
  if (type.num_dims() != std::ssize(wanted.dims) || type.batch_axis != wanted.batch_axis) {
    throw BundleError(what + "has " + std::to_string(type.num_dims()) + " dims and batch axis " +
                      std::to_string(type.batch_axis) + ", expected " + std::to_string(wanted.dims.size()) + " and " +
                      std::to_string(wanted.batch_axis));
  }
  if (wanted.index_range && (!type.range || !wanted.index_range->contains(*type.range))) {
    throw BundleError(what + "is not known to lie in its index_range");
  }
}

// Values that a batch reads of requests must be gathered; those that requests read of a batch, handed out.
void Program::note_reads(const std::vector<int>& slots, bool in_batch, bool after_module) {
  for (const int index : slots) {
    const Origin origin = origins_[static_cast<size_t>(index)];
    const Slot slot{index, types_[static_cast<size_t>(index)].batch_axis};
    if (in_batch && origin == Origin::kRequest) add_once(into_batch_, slot);
    if (!in_batch && after_module && origin == Origin::kBatch) add_once(out_of_batch_, slot);
  }
}

bool Program::is_only_of_module(int slot) const {
  const auto reads = [slot](const Step& step) {
    return std::find(step.inputs.begin(), step.inputs.end(), slot) != step.inputs.end();
  };
  const bool is_read = std::any_of(batch_before_.begin(), batch_before_.end(), reads) ||
                       std::any_of(batch_after_.begin(), batch_after_.end(), reads);
  return !is_read && std::find(module_inputs_.begin(), module_inputs_.end(), slot) != module_inputs_.end();
}

void Program::run(const std::vector<Step>& steps, Values& values) {
  for (const Step& step : steps) {
    std::vector<const Tensor*> inputs;
    for (const int slot : step.inputs) inputs.push_back(&values[static_cast<size_t>(slot)]);
    std::vector<Tensor> results = step.op.run(inputs);
    for (size_t i = 0; i < results.size(); ++i) values[static_cast<size_t>(step.outputs[i])] = std::move(results[i]);
  }
}

}  // namespace trunnion::bundle
