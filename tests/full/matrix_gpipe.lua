require "matrix".all "gpipe" -- tests/lib/matrix.lua
