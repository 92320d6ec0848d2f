# The server and the load tool: gRPC (callback interface), HTTP, and the protocol's messages.

find_package(PkgConfig REQUIRED)
pkg_check_modules(GRPC REQUIRED grpc++ protobuf)
find_program(PROTOC protoc REQUIRED)
find_program(GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)

option(TRUNNION_BUNDLE_STATIC "Link gRPC and protobuf statically, for a server that is carried elsewhere" OFF)

set(PROTO ${PROJECT_SOURCE_DIR}/proto/open_inference.proto)
set(GENERATED ${PROJECT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${GENERATED})
set(MESSAGES ${GENERATED}/open_inference.pb.cc ${GENERATED}/open_inference.grpc.pb.cc)
add_custom_command(
  OUTPUT ${MESSAGES} ${GENERATED}/open_inference.pb.h ${GENERATED}/open_inference.grpc.pb.h
  COMMAND ${PROTOC} --proto_path=${PROJECT_SOURCE_DIR}/proto --cpp_out=${GENERATED} --grpc_out=${GENERATED}
          --plugin=protoc-gen-grpc=${GRPC_PLUGIN} ${PROTO}
  DEPENDS ${PROTO}
  VERBATIM)
add_library(open_inference STATIC ${MESSAGES})
target_include_directories(open_inference SYSTEM PUBLIC ${GENERATED} ${GRPC_INCLUDE_DIRS})
if(TRUNNION_BUNDLE_STATIC)
  target_link_options(open_inference PUBLIC -static-libstdc++ -static-libgcc)
  target_link_libraries(open_inference PUBLIC -Wl,-Bstatic ${GRPC_STATIC_LIBRARIES} -Wl,-Bdynamic)
else()
  target_link_libraries(open_inference PUBLIC ${GRPC_LIBRARIES})
endif()

file(STRINGS ${PROJECT_SOURCE_DIR}/pyproject.toml VERSION_LINE REGEX "^version = ")
string(REGEX REPLACE "^version = \"(.*)\"$" "\\1" VERSION_TEXT "${VERSION_LINE}")

file(GLOB SERVER_SOURCES CONFIGURE_DEPENDS src/server/*.cc)
add_executable(trunnion-serve-bundle ${SERVER_SOURCES})
trunnion_bundle_target(trunnion-serve-bundle)
target_compile_definitions(trunnion-serve-bundle PRIVATE TRUNNION_BUNDLE_VERSION="${VERSION_TEXT}")
target_link_libraries(trunnion-serve-bundle PRIVATE trunnion_bundle open_inference PkgConfig::HTTPLIB)

file(GLOB BENCH_SOURCES CONFIGURE_DEPENDS src/bench/*.cc)
add_executable(trunnion-bench-bundle ${BENCH_SOURCES})
trunnion_bundle_target(trunnion-bench-bundle)
target_link_libraries(trunnion-bench-bundle PRIVATE trunnion_bundle open_inference)
