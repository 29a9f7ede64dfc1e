require "matrix".all "interleaved_zero_bubble" -- tests/lib/matrix.lua
