require "matrix".all "dualpipev" -- tests/lib/matrix.lua
