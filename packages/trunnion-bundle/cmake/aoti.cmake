# The engine of AOTInductor libraries, against the libtorch of the wheel in TRUNNION_BUNDLE_TORCH.

add_library(engine_aoti MODULE src/engines/aoti.cc src/engines/mapped_weights.cc)
trunnion_bundle_target(engine_aoti)
# Only here: the wheel's headers hide the system's protobuf from who includes both.
target_include_directories(engine_aoti SYSTEM PRIVATE ${TRUNNION_BUNDLE_TORCH}/include)
target_link_directories(engine_aoti PRIVATE ${TRUNNION_BUNDLE_TORCH}/lib)
target_link_libraries(engine_aoti PRIVATE nlohmann_json::nlohmann_json torch torch_cpu c10 ${CMAKE_DL_LIBS})
target_link_options(engine_aoti PRIVATE -Wl,--no-as-needed)
set_target_properties(engine_aoti PROPERTIES PREFIX "" BUILD_RPATH ${TRUNNION_BUNDLE_TORCH}/lib
                                             INSTALL_RPATH "$ORIGIN/../../torch/lib")
