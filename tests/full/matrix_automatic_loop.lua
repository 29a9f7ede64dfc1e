require "matrix".all "automatic_loop" -- tests/lib/matrix.lua
