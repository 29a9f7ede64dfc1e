require "matrix".all "automatic" -- tests/lib/matrix.lua
