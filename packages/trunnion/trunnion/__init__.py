"""trunnion: Python model execution under a C++ serving framework."""
