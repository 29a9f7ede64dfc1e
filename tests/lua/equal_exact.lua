-- Equal to one device, bit for bit: losses, gradients before the optimizer, weights; for models whose
-- arithmetic is exact. EQUAL_SHORT=1 runs a covering part (for runs under random delays).
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"

local short = os.getenv "EQUAL_SHORT" == "1"
local data = exact.data()

local function plan_of(model, strategy, batch, dtype)
  return piper.compile(model, strategy, { batch = batch, dtype = dtype, optimizer = piper.sgd { lr = 1 }, verify = true })
end

local references = {}
local function reference(kind, stages, batch, dtype)
  local key = ("%s %d %d %s"):format(kind, stages, batch, dtype)
  references[key] = references[key] or exact.trace(plan_of(exact.model(kind, stages), piper.strategy(), batch, dtype), data)
  return references[key]
end

local function compare(name, kind, stages, batch, strategy, dtype)
  local plan = plan_of(exact.model(kind, stages), strategy, batch, dtype or "f64")
  local got, want = exact.trace(plan, data), reference(kind, stages, batch, dtype or "f64")
  if not tap.ok(got == want, name) then tap.diag(exact.difference(got, want)) end
end

for _, kind in ipairs(exact.kinds) do
  for _, stages in ipairs(short and { 4 } or { 1, 2, 4 }) do
    for _, schedule in ipairs { "gpipe", "one_f_one_b" } do
      for _, microbatches in ipairs(short and { 3 } or { 1, 2, 3, 4, 8 }) do
        for devices = 1, 2 do
          -- 24 / 8 = 3 samples do not divide over 2 devices: twice the batch does
          local batch = microbatches == 8 and devices == 2 and 48 or 24
          if not (kind:find "middle" and stages == 1) then
            compare(("%s: %d stages, %s, %d microbatches of %d samples, %d devices a stage"):format(kind, stages,
              schedule, microbatches, batch, devices), kind, stages, batch,
              exact.strategy(schedule, stages, microbatches, devices))
          end
        end
      end
    end
  end
end

-- Neighbouring stages on device sets of different size.
for _, kind in ipairs { "plain", "skip", "shared", "tied" } do
  for _, sizes in ipairs { { 1, 2, 1, 2 }, { 2, 1, 2, 1 }, { 4, 2, 1, 2 } } do
    for _, microbatches in ipairs { 1, 3 } do
      compare(("%s: stages on %s devices, %d microbatches"):format(kind, table.concat(sizes, ","), microbatches), kind, 4,
        24, exact.strategy("one_f_one_b", 4, microbatches, nil, sizes))
    end
  end
end

-- Nested and partial splits, no pipeline schedule at all, one device for several stages.
local s = piper.strategy()
s:split { filter = {}, dim_name = "A", num_microbatches = 2 }
s:split { filter = {}, dim_name = "B", num_microbatches = 3 }
compare("nested splits", "skip", 2, 24, s)
s = piper.strategy()
s:split { filter = { PP = 1 }, num_microbatches = 4 }
compare("only one stage is split", "plain", 3, 24, s)
s = piper.strategy()
s:split { filter = { PP = { 0, 1 } }, num_microbatches = 4 }
s:place { filter = { PP = 0 }, devices = { 0 } }
s:place { filter = { PP = 1 }, devices = { 1, 2 } }
s:place { filter = { PP = 2 }, devices = { 3 } }
s:replicate { filter = { PP = 1 }, devices = { 1, 2 } }
compare("two stages of three are split, on sets of different size", "plain", 3, 24, s)
s = piper.strategy()
s:split { filter = { PP = 0 }, num_microbatches = 2 }
s:split { filter = { PP = 1 }, num_microbatches = 3 }
compare("stages split differently", "plain", 2, 24, s)
s = piper.strategy()
s:place { filter = { PP = { 0, 2 } }, devices = { 7 } }
s:place { filter = { PP = { 1, 3 } }, devices = { 2 } }
s:split { num_microbatches = 4 }
compare("two stages a rank, ranks 7 and 2, no order", "skip", 4, 24, s)
s = piper.strategy()
s:place { filter = {}, devices = { 3, 1 } }
s:replicate { filter = {}, devices = { 3, 1 }, bucket_size = 1 / (1 << 20) }
compare("plain data parallel, a bucket for each parameter, ranks in falling order", "uneven", 3, 24, s)

-- Overlapped groups and a split backward by hand.
s = piper.strategy()
s:split { num_microbatches = 3 }
s:place { filter = { PP = 0 }, devices = { 0 } }
s:place { filter = { PP = 1 }, devices = { 1 } }
local function act(pp, pass, mb) return { PP = pp, PASS = pass, MB = mb } end
s:order { filters = { act(0, "F", 0), act(0, "F", 1), { act(0, "F", 2), act(0, "BI", 0) }, act(0, "BW", 0),
  act(0, "BI", 1), act(0, "BI", 2), act(0, "BW", 1), act(0, "BW", 2) } }
s:order { filters = { act(1, "F", 0), act(1, "BI", 0), { act(1, "F", 1), act(1, "BW", 0) }, act(1, "BI", 1),
  act(1, "F", 2), act(1, "BI", 2), act(1, "BW", 2), act(1, "BW", 1) } }
for _, kind in ipairs { "plain", "skip", "shared", "tied", "reshape", "frozen_first", "no_parameters" } do
  compare("split backward and overlapped groups: " .. kind, kind, 2, 24, s)
end

compare("f32", "skip", 4, 24, exact.strategy("one_f_one_b", 4, 4, 2), "f32")
tap.done()
