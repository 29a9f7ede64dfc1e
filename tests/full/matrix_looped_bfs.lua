require "matrix".all "looped_bfs" -- tests/lib/matrix.lua
