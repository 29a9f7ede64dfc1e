-- Every schedule, level of ZeRO, number of replicas and microbatches, model and recomputation together: a part
-- that covers them (tests/lib/matrix.lua). make check-full runs all.
require "matrix".some()
