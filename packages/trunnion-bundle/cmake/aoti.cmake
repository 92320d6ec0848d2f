# The engine of AOTInductor libraries, against the libtorch of the wheel in TRUNNION_BUNDLE_TORCH.

trunnion_bundle_engine(engine_aoti src/engines/aoti.cc src/engines/mapped_weights.cc)
# Only here: the wheel's headers hide the system's protobuf from who includes both.
target_include_directories(engine_aoti SYSTEM PRIVATE ${TRUNNION_BUNDLE_TORCH}/include)
target_link_directories(engine_aoti PRIVATE ${TRUNNION_BUNDLE_TORCH}/lib)
target_link_libraries(engine_aoti PRIVATE torch torch_cpu c10 ${CMAKE_DL_LIBS})
target_link_options(engine_aoti PRIVATE -Wl,--no-as-needed)
# In a wheel it lies in trunnion_bundle/bin, beside the folder of torch.
set_target_properties(engine_aoti PROPERTIES BUILD_RPATH ${TRUNNION_BUNDLE_TORCH}/lib INSTALL_RPATH "$ORIGIN/../../torch/lib")

# A quoted string, on the line after its name.
file(READ ${TRUNNION_BUNDLE_TORCH}/include/torch/headeronly/version.h TORCH_VERSION_HEADER)
if(NOT TORCH_VERSION_HEADER MATCHES "define TORCH_VERSION [^\"]*\"([0-9.]+)")
  message(FATAL_ERROR "${TRUNNION_BUNDLE_TORCH}/include/torch/headeronly/version.h does not say which torch it is")
endif()
file(WRITE ${PROJECT_BINARY_DIR}/engine_aoti.needs.txt
     "the Python package torch ${CMAKE_MATCH_1}, beside trunnion_bundle or with its folder lib in LD_LIBRARY_PATH\n")
