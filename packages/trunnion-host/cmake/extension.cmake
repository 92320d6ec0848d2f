# The extension module _host.abi3.so, which is also the library that C and C++ hosts link, and the embed example.

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.Embed)

trunnion_objects(trunnion_python_bridge src/executor/python_bridge.cc)
# Not Python::Module: one file of ours includes Python.h, with the limited API, and nothing links libpython.
target_include_directories(trunnion_python_bridge SYSTEM PRIVATE ${Python_INCLUDE_DIRS})

add_library(_host SHARED)
target_link_libraries(_host PUBLIC ${TRUNNION_PARTS} trunnion_python_bridge Threads::Threads)
set_target_properties(_host PROPERTIES PREFIX "" OUTPUT_NAME "_host.abi3" SUFFIX ".so")

install(TARGETS _host LIBRARY DESTINATION trunnion_host)
install(DIRECTORY include/trunnion DESTINATION trunnion_host/include)

if(Python_Development.Embed_FOUND AND NOT SKBUILD)
  add_subdirectory(examples/embed)
endif()
