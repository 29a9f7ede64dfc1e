require "matrix".all "zb_h2" -- tests/lib/matrix.lua
