-- How often each bucket is reduced and gathered in a step is what the strategy chose, at every level; and
-- a run's parameters can be read and set whatever is divided.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local M = 8
local model = piper.model("counted", function(m)
  local h = m:input("x", { "batch", 4 }, "f32")
  for stage = 0, 1 do
    piper.annotate("PP", function()
      for l = 0, 1 do h = nn.linear(h, ("s%d.l%d"):format(stage, l), { out = 4 }) end
      if stage == 1 then m:loss(nn.sum_squares(h)) end
    end)
  end
end)

-- { kind = calls } of each bucket; the plan's other rows.
local function counts(plan)
  local buckets, others = {}, {}
  for _, row in ipairs(plan:communication()) do
    if row.bucket then
      buckets[row.bucket] = buckets[row.bucket] or {}
      buckets[row.bucket][row.kind] = (buckets[row.bucket][row.kind] or 0) + row.calls
    else
      others[#others + 1] = row
    end
  end
  return buckets, others
end

local function words(calls)
  local list = {}
  for _, kind in ipairs { "all_reduce", "reduce_scatter", "all_gather" } do
    if calls[kind] then list[#list + 1] = ("%s %d"):format(kind, calls[kind]) end
  end
  return table.concat(list, ", ")
end

-- One chunk a stage: the gathered bucket stays from the first forward to the last backward pass.
local EXPECTED = {
  { {}, "all_reduce 1" },
  { { reduce = "microbatch" }, "all_reduce 8" },
  { { shard_optimizer = true }, "reduce_scatter 1, all_gather 1" },
  { { shard_optimizer = true, reduce = "microbatch" }, "reduce_scatter 8, all_gather 1" },
  { { shard_grads = true }, "reduce_scatter 1, all_gather 1" },
  { { shard_grads = true, reduce = "microbatch" }, "reduce_scatter 8, all_gather 1" },
  { { shard_params = true }, "reduce_scatter 1, all_gather 1" },
  { { shard_params = true, reduce = "microbatch" }, "reduce_scatter 8, all_gather 1" },
}
for _, case in ipairs(EXPECTED) do
  for _, bucket_size in ipairs { 25, 4 / (1 << 20) } do -- one bucket a stage; one a parameter
    local flags = { bucket_size = bucket_size }
    for k, v in pairs(case[1]) do flags[k] = v end
    local plan = piper.compile(model, exact.strategy("one_f_one_b", 2, M, 2, nil, flags), { batch = 2 * M, verify = true })
    local buckets, others = counts(plan)
    local n, fine = 0, true
    for name, calls in pairs(buckets) do
      n = n + 1
      if words(calls) ~= case[2] then
        fine = false
        tap.diag(name .. ": " .. words(calls))
      end
    end
    tap.ok(fine and n == (bucket_size == 25 and 2 or 8), ("%s: %d buckets, each %s"):format(exact.flags_text(case[1]), n, case[2]))
    tap.is(#others, 5, "beside them the metrics, and values and their gradients from each device of a stage")
  end
end

-- The rows in full.
local plan = piper.compile(model, exact.strategy("one_f_one_b", 2, 2, 2, nil, { shard_params = true, reduce_stream = "sums" }),
  { batch = 4, dtype = "f64" })
local function text(row)
  return ("%s %s %s %s %s: %d calls, %d bytes"):format(row.bucket, row.what, row.kind, row.stream,
    table.concat(row.devices, "-"), row.calls, row.bytes)
end
local rows = {}
for i, row in ipairs(plan:communication()) do rows[i] = text(row) end
tap.is(table.concat(rows, "\n"), table.concat({
  "s0.l0.weight.. gradients reduce_scatter sums 0-1: 1 calls, 320 bytes",
  "s0.l0.weight.. parameters all_gather ag_stream 0-1: 1 calls, 320 bytes",
  "s1.l0.weight.. gradients reduce_scatter sums 2-3: 1 calls, 320 bytes",
  "s1.l0.weight.. parameters all_gather ag_stream 2-3: 1 calls, 320 bytes",
  "nil metrics all_reduce dp_stream 0-1-2-3: 1 calls, 24 bytes",
  "nil values transfer pp_stream/F/0>2 0-2: 2 calls, 64 bytes",
  "nil values transfer pp_stream/F/1>3 1-3: 2 calls, 64 bytes",
  "nil gradients transfer pp_stream/B/2>0 2-0: 2 calls, 64 bytes",
  "nil gradients transfer pp_stream/B/3>1 3-1: 2 calls, 64 bytes",
}, "\n"), "rows: buckets first, then the rest; calls of a step and their bytes")
tap.like(tostring(plan), "\ncommunication of a step\nkind +what +stream +buckets +calls +bytes\n"
  .. "reduce_scatter +gradients +sums +2 +2 +640 B\nall_gather +parameters +ag_stream +2 +2 +640 B\n", "print(plan) sums them up")

-- Whole parameters go in and out, wherever their parts are.
for _, flags in ipairs(exact.zero) do
  local p = piper.compile(model, exact.strategy("one_f_one_b", 2, 2, 3, nil, flags[2]), { batch = 6 })
  local run <close> = piper.train(p, { data = exact.data(), lr = 0 })
  local values = {}
  for i = 1, 16 do values[i] = i / 4 end
  run:set_params("s0.l1.weight", values)
  tap.is(table.concat(run:params "s0.l1.weight", " "), table.concat(values, " "), flags[1] .. ": what was set is there")
  run:check_replicas()
  for _ in run:steps(1) do end
  tap.is(table.concat(run:params "s0.l1.weight", " "), table.concat(values, " "), "... after a step at rate 0, too")
  tap.is(#run:gradients "s0.l0.bias", 4, "gradients are whole")
end

-- What replicate is told.
for _, case in ipairs {
  { { shard_params = 1 }, 'replicate: field "shard_params" is 1, not true or false' },
  { { reduce = "batch" }, 'replicate: field "reduce" is "batch", not one of "step", "microbatch"' },
  { { prefetch = -1 }, 'replicate: field "prefetch" is %-1, not a whole number of at least 0' },
  { { prefetch = 1.5 }, 'replicate: field "prefetch" is 1.5, not a whole number' },
  { { keep = -1 }, 'replicate: field "keep" is %-1, not a number of at least 0' },
  { { shard_parms = true }, 'replicate: unknown field "shard_parms" %(did you mean "shard_params"%?%)' },
} do
  tap.error_matches(function()
    local spec = { filter = {}, devices = { 0, 1 } }
    for k, v in pairs(case[1]) do spec[k] = v end
    piper.strategy():replicate(spec)
  end, case[2])
end
tap.done()
