require "matrix".all "zbv" -- tests/lib/matrix.lua
