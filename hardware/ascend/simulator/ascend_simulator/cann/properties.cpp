// What the device says of itself: one card of the kind that a session asks for, on a CANN of version 9.1.0.
#include <cstring>
#include <string>

#include "acl/acl_op_compiler.h"
#include "errors.h"

namespace {

constexpr const char* CANN_VERSION = "9.1.0";
std::string soc_name = "Ascend910B3";
int num_devices = 1;
// The one that this process uses; -1 before it has chosen.
int chosen_device = -1;
char context;

int refuse_other(const char* name, int device) {
    return sim::guarded(name, [&] {
        if (device < 0 || device >= num_devices) {
            throw sim::Fault(ACL_ERROR_RT_PARAM_INVALID,
                             "device " + std::to_string(device) + " of " + std::to_string(num_devices));
        }
        if (chosen_device >= 0 && device != chosen_device) {
            throw sim::Fault(ACL_ERROR_RT_PARAM_INVALID,
                             "device " + std::to_string(device) + " in a process that uses device " +
                                 std::to_string(chosen_device) + ": the others are other processes'");
        }
    });
}

}  // namespace

extern "C" {

void sim_set_soc_name(const char* name) { soc_name = name; }
void sim_set_num_devices(int count) { num_devices = count; }

aclError aclInit(const char*) { return ACL_SUCCESS; }
aclError aclFinalize() { return ACL_SUCCESS; }
const char* aclrtGetSocName() { return soc_name.c_str(); }
aclError aclsysGetVersionStr(char*, char* version) {
    std::strcpy(version, CANN_VERSION);
    return ACL_SUCCESS;
}
aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
    *version = {};
    std::strncpy(version->version, CANN_VERSION, sizeof version->version - 1);
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceCount(uint32_t* count) {
    *count = static_cast<uint32_t>(num_devices);
    return ACL_SUCCESS;
}
aclError aclrtSetDevice(int32_t device) {
    const int code = refuse_other("aclrtSetDevice", device);
    if (code == ACL_SUCCESS) chosen_device = device;
    return code;
}
aclError aclrtGetDevice(int32_t* device) {
    *device = chosen_device < 0 ? 0 : chosen_device;
    return ACL_SUCCESS;
}
aclError aclrtResetDevice(int32_t device) { return refuse_other("aclrtResetDevice", device); }
aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t* const logical) {
    *logical = user;
    return ACL_SUCCESS;
}
aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* active) {
    if (flags != nullptr) *flags = 0;
    *active = 1;
    return ACL_SUCCESS;
}
aclError aclrtGetCurrentContext(aclrtContext* found) {
    *found = &context;
    return ACL_SUCCESS;
}
aclError aclrtSetCurrentContext(aclrtContext) { return ACL_SUCCESS; }
aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
    *can = 0;
    return ACL_SUCCESS;
}
aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }
aclError aclrtDeviceGetBareTgid(int32_t* id) {
    *id = 1;
    return ACL_SUCCESS;
}

// Cores of an Atlas A2 card with an Ascend910B3: 20 for matrices, 40 for vectors.
aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo what, int64_t* value) {
    switch (what) {
        case ACL_DEVICE_INFO_AI_CORE_NUM:
            *value = 20;
            return ACL_SUCCESS;
        case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
            *value = 40;
            return ACL_SUCCESS;
        default:
            *value = 192 << 20;
            return ACL_SUCCESS;
    }
}
aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr what, int64_t* value) {
    *value = what == ACL_DEV_ATTR_VECTOR_CORE_NUM ? 40 : 20;
    return ACL_SUCCESS;
}
aclError aclGetCannAttribute(aclCannAttr, int32_t* value) {
    *value = 1;
    return ACL_SUCCESS;
}

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
aclError aclrtGetSysParamOpt(aclSysParamOpt, int64_t* value) {
    *value = 0;
    return ACL_SUCCESS;
}
aclError aclrtSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }
aclError aclrtCtxSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }
aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }
size_t aclGetCompileoptSize(aclCompileOpt) { return sizeof "disable"; }
aclError aclGetCompileopt(aclCompileOpt, char* value, size_t bytes) {
    std::strncpy(value, "disable", bytes);
    return ACL_SUCCESS;
}
aclError aclmdlSetDump(const char*) { return ACL_SUCCESS; }
aclError aclmdlInitDump() { return ACL_SUCCESS; }
aclError aclmdlFinalizeDump() { return ACL_SUCCESS; }
aclError aclrtProcessReport(int32_t) { return ACL_SUCCESS; }
aclError aclrtSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }

}  // extern "C"
