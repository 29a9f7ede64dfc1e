require "matrix".all "automatic_v" -- tests/lib/matrix.lua
