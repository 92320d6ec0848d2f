// What torch_npu links with and the simulation does not model: each call is an error that says its name.
#include <cstdint>
#include <string>

#include "errors.h"

namespace {

int refuse(const char* name) {
    sim::set_message(std::string(name) + " is not modelled");
    return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}

}  // namespace

// Not acl's declarations: nothing of the arguments is looked at.
#define REFUSED(name) \
    extern "C" int name##_refused() __asm__(#name); \
    extern "C" int name##_refused() { return refuse(#name); }

// Descriptors, and operators of the graph engine: what torch_npu falls back to if an aclnn operator is missing.
extern "C" {
// What an operator of the graph engine is described with: made, and not read.
void* sim_describe() __asm__("aclCreateTensorDesc");
void* sim_describe() { return new char; }
void* sim_buffer() __asm__("aclCreateDataBuffer");
void* sim_buffer() { return new char; }
void* sim_attributes() __asm__("aclopCreateAttr");
void* sim_attributes() { return new char; }
void sim_drop_description(char* what) __asm__("aclDestroyTensorDesc");
void sim_drop_description(char* what) { delete what; }
int sim_drop_buffer(char* what) __asm__("aclDestroyDataBuffer");
int sim_drop_buffer(char* what) {
    delete what;
    return 0;
}
void sim_drop_attributes(char* what) __asm__("aclopDestroyAttr");
void sim_drop_attributes(char* what) { delete what; }

int aclopCompileAndExecute(const char* operator_name) {
    sim::set_message(std::string("operator ") + operator_name +
                     " of the graph engine is not modelled: no rule is written for the aclnn operator that torch_npu prefers");
    return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}
int aclopCompileAndExecuteV2(const char* operator_name) { return aclopCompileAndExecute(operator_name); }
}

#define ACCEPTED(name) \
    extern "C" int name##_accepted() __asm__(#name); \
    extern "C" int name##_accepted() { return 0; }

ACCEPTED(aclSetTensorDescName)
ACCEPTED(aclSetTensorFormat)
ACCEPTED(aclSetTensorPlaceMent)
ACCEPTED(aclSetTensorShape)
ACCEPTED(aclopSetAttrBool)
ACCEPTED(aclopSetAttrDataType)
ACCEPTED(aclopSetAttrFloat)
ACCEPTED(aclopSetAttrInt)
ACCEPTED(aclopSetAttrListBool)
ACCEPTED(aclopSetAttrListFloat)
ACCEPTED(aclopSetAttrListInt)
ACCEPTED(aclopSetAttrListListInt)
ACCEPTED(aclopSetAttrString)
REFUSED(aclGetTensorDescDimV2)
REFUSED(aclGetTensorDescFormat)
REFUSED(aclGetTensorDescNumDims)
REFUSED(aclGetTensorDescType)

// Binaries of kernels.
REFUSED(aclrtBinaryGetFunction)
REFUSED(aclrtBinaryLoadFromData)
REFUSED(aclrtGetFunctionAddr)
REFUSED(rtDevBinaryRegister)
REFUSED(rtFunctionRegister)
REFUSED(rtGetC2cCtrlAddr)
REFUSED(rtKernelLaunch)

// Virtual memory, and memory of other processes.
REFUSED(aclrtFreePhysical)
REFUSED(aclrtMallocPhysical)
REFUSED(aclrtMapMem)
REFUSED(aclrtUnmapMem)
REFUSED(aclrtReserveMemAddress)
REFUSED(aclrtReleaseMemAddress)
REFUSED(aclrtMemExportToShareableHandle)
REFUSED(aclrtMemImportFromShareableHandle)
REFUSED(aclrtMemSetPidToShareableHandle)

// Events of the kind that values in memory have replaced.
REFUSED(aclrtResetEvent)

// The profiler.
ACCEPTED(MsprofGetHashId)
ACCEPTED(MsprofRegisterCallback)
ACCEPTED(MsprofReportAdditionalInfo)
ACCEPTED(MsprofReportApi)
ACCEPTED(MsprofReportCompactInfo)
ACCEPTED(MsprofSysCycleTime)
