require "matrix".all "one_f_one_b" -- tests/lib/matrix.lua
