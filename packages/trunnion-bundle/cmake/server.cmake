# The server and the load tool: gRPC (callback interface), HTTP, and the protocol's messages.

find_package(PkgConfig REQUIRED)
# Nothing here uses TLS: the server is meant to stand behind what does.
pkg_check_modules(GRPC REQUIRED grpc++_unsecure protobuf)
find_program(PROTOC protoc REQUIRED)
find_program(GRPC_PLUGIN grpc_cpp_plugin REQUIRED)

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
  # What Debian's grpc++_unsecure.pc leaves out; gRPC's libraries refer to each other. libstdc++ stays shared: engines bring it too.
  list(REMOVE_DUPLICATES GRPC_STATIC_LIBRARIES)
  target_link_libraries(open_inference PUBLIC -Wl,-Bstatic -Wl,--start-group ${GRPC_STATIC_LIBRARIES} address_sorting cares re2 upb
                        -Wl,--end-group -Wl,-Bdynamic)
else()
  target_link_libraries(open_inference PUBLIC ${GRPC_LIBRARIES})
endif()

add_library(command_line STATIC src/command_line/command_line.cc)
trunnion_bundle_target(command_line)

file(GLOB SERVER_SOURCES CONFIGURE_DEPENDS src/server/*.cc)
add_executable(trunnion-serve-bundle ${SERVER_SOURCES})
target_compile_definitions(trunnion-serve-bundle PRIVATE TRUNNION_BUNDLE_VERSION="${PROJECT_VERSION}")
target_include_directories(trunnion-serve-bundle SYSTEM PRIVATE ${PROJECT_SOURCE_DIR}/include/third_party)

file(GLOB BENCH_SOURCES CONFIGURE_DEPENDS src/bench/*.cc)
add_executable(trunnion-bench-bundle ${BENCH_SOURCES})

foreach(program trunnion-serve-bundle trunnion-bench-bundle)
  trunnion_bundle_target(${program})
  target_link_libraries(${program} PRIVATE trunnion_bundle command_line open_inference)
endforeach()
