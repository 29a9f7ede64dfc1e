require "matrix".all "dualpipe" -- tests/lib/matrix.lua
