require "matrix".all "interleaved_one_f_one_b" -- tests/lib/matrix.lua
