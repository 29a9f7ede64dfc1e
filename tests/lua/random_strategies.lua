require "random_strategy".run(1, 50) -- tests/lib/random_strategy.lua
