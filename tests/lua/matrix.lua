-- Schedules, ranks, microbatches, replicas, levels of ZeRO, models, recomputation, buckets: any two values of
-- these meet in a plan that is compared with one device (tests/lib/matrix.lua). make check-full runs all.
require "matrix".pairs()
