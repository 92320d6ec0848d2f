// The steps of one signature, ready to run: values in slots, and which of them cross from requests to a batch and back.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "bundle/contract.h"
#include "steps/operators.h"
#include "tensor/tensor.h"

namespace trunnion::bundle {

using Values = std::vector<Tensor>;

struct Slot {
  int index = 0;
  int batch_axis = -1;
};

class Program {
 public:
  // Throws BundleError where the steps do not fit the module.
  Program(const SignatureSpec& signature, const ModuleSpec& module, const std::string& place,
          const OperatorContext& context);

  size_t num_slots() const { return types_.size(); }

  // Steps of one request: before it is queued, and after its rows have come back. Throw InvalidRequest.
  void run_before_queue(Values& request) const { run(request_before_, request); }
  void run_after_batch(Values& request) const { run(request_after_, request); }
  // Steps of a merged batch, around the module.
  void run_before_module(Values& batch) const { run(batch_before_, batch); }
  void run_after_module(Values& batch) const { run(batch_after_, batch); }

  bool has_steps_after_module() const { return !batch_after_.empty(); }
  // Whether a batch's value may be gathered with room for padding, for only the module reads it.
  bool is_only_of_module(int slot) const;

  const std::vector<Slot>& into_batch() const { return into_batch_; }
  const std::vector<Slot>& out_of_batch() const { return out_of_batch_; }
  const std::vector<int>& module_inputs() const { return module_inputs_; }
  const std::vector<int>& module_outputs() const { return module_outputs_; }
  // In the order of the signature.
  const std::vector<int>& outputs() const { return outputs_; }

 private:
  struct Step {
    Operator op;
    std::vector<int> inputs, outputs;
  };
  enum class Origin { kRequest, kBatch, kAfter };

  static void run(const std::vector<Step>& steps, Values& values);
  int slot_of(const std::string& name) const;
  void add_value(const std::string& name, const ValueType& type, Origin origin);
  void add_module(const StepSpec& step, const ModuleSpec& module, const Symbols& symbols, const std::string& place);
  void check_module_input(const TensorSpec& wanted, int slot, const std::string& place) const;
  void check_output(const TensorSpec& output, int slot, const std::string& place) const;
  void note_reads(const std::vector<int>& slots, bool in_batch, bool after_module);

  std::vector<std::string> names_;
  std::vector<ValueType> types_;
  std::vector<Origin> origins_;
  std::vector<Step> request_before_, batch_before_, batch_after_, request_after_;
  std::vector<Slot> into_batch_, out_of_batch_;
  std::vector<int> module_inputs_, module_outputs_, outputs_;
};

}  // namespace trunnion::bundle
