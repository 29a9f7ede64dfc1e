require "random_strategy".run(51, 2000) -- tests/lib/random_strategy.lua
