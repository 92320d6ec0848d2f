// Operators: torch_npu asks for the workspace of a call first, and then launches what it was given for it.
#include "operators.h"

#include "errors.h"
#include "memory.h"

namespace sim {
namespace {

// Rules are outside of this library. They answer 0, or have set the message.
using Rule = int (*)(const char* name, const int64_t* words, int64_t count);
using Check = int64_t (*)(const char* name, const int64_t* words, int64_t count);
Rule rule = nullptr;
Check check = nullptr;

class Kernel : public Task {
  public:
    Kernel(const char* name, Words arguments) : Task(name), arguments_(std::move(arguments)) {}

    bool is_operator() const override { return true; }

    bool advance() override {
        for (const auto& [first, bytes] : arguments_.memory) {
            if (!is_device_memory(first, bytes)) {
                throw Fault(ACL_ERROR_RT_AICORE_EXCEPTION, name + " was given an address that is not device memory, or no longer");
            }
        }
        const auto& words = arguments_.words;
        if (rule(name.c_str(), words.data(), static_cast<int64_t>(words.size())) != 0) {
            throw Fault(ACL_ERROR_RT_AICORE_EXCEPTION, rule_message());
        }
        return true;
    }

  private:
    Words arguments_;
};

}  // namespace

int prepare(const char* name, bool is_checked, Words arguments, uint64_t* workspace_bytes, aclOpExecutor** executor) {
    return guarded("workspace", [&] {
        *workspace_bytes = 0;
        if (is_checked) {
            const int64_t bytes = check(name, arguments.words.data(), static_cast<int64_t>(arguments.words.size()));
            if (bytes < 0) throw Fault(ACL_ERROR_INVALID_PARAM, rule_message());
            *workspace_bytes = static_cast<uint64_t>(bytes);
        }
        *executor = new aclOpExecutor{name, std::move(arguments), *workspace_bytes};
    });
}

int launch(aclOpExecutor* executor, uint64_t workspace_bytes, aclrtStream stream) {
    return guarded("launch", [&] {
        if (workspace_bytes < executor->workspace_bytes) {
            throw Fault(ACL_ERROR_INVALID_PARAM, std::string(executor->name) + " was given a workspace of " +
                                                     std::to_string(workspace_bytes) + " bytes and needs " +
                                                     std::to_string(executor->workspace_bytes));
        }
        auto task = std::make_shared<Kernel>(executor->name, std::move(executor->arguments));
        delete executor;
        device().launch(stream, std::move(task));
    });
}

}  // namespace sim

extern "C" {

void sim_set_rules(sim::Rule rule, sim::Check check) {
    sim::rule = rule;
    sim::check = check;
}

int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
    delete executor;
    return ACL_SUCCESS;
}

}  // extern "C"
