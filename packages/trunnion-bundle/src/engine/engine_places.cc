#include "engine/engine_places.h"

#include <dlfcn.h>

#include <vector>

#include "engine/engine.h"

namespace trunnion::bundle {
namespace {

namespace fs = std::filesystem;

// Of the program, and of the shared library if this code is in one.
std::vector<fs::path> own_folders() {
  std::error_code none;
  std::vector<fs::path> found = {fs::read_symlink("/proc/self/exe", none).parent_path()};
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&find_engine), &self) != 0 && self.dli_fname != nullptr) {
    const fs::path library = fs::canonical(self.dli_fname, none).parent_path();
    if (!none && library != found.front()) found.push_back(library);
  }
  return found;
}

std::vector<fs::path> places() {
  std::vector<fs::path> found;
  for (const fs::path& own : own_folders()) {
    for (const fs::path& place : {own, own / "trunnion_bundle", own.parent_path() / "lib" / "trunnion_bundle"}) found.push_back(place);
  }
  return found;
}

}  // namespace

fs::path find_engine(const std::string& name, const fs::path& folder) {
  const std::string file = "engine_" + name + ".so";
  std::string tried;
  for (const fs::path& place : folder.empty() ? places() : std::vector<fs::path>{folder}) {
    std::error_code none;
    if (fs::is_regular_file(place / file, none)) return place / file;
    tried += (tried.empty() ? "" : ", ") + place.string();
  }
  throw EngineRefused("there is no " + file + " in " + tried);
}

}  // namespace trunnion::bundle
