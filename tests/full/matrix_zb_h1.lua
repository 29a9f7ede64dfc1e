require "matrix".all "zb_h1" -- tests/lib/matrix.lua
