-- ZeRO at every level changes no bit: gradients, norm and weights are those of one device, whatever is
-- divided, whenever gradients are reduced, and however parameters fall into buckets and shares.
-- EQUAL_SHORT=1 runs a covering part (for runs under random delays).
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local short = os.getenv "EQUAL_SHORT" == "1"
local data = exact.data()

local function plan_of(model, strategy, batch)
  return piper.compile(model, strategy, { batch = batch, dtype = "f64", optimizer = piper.sgd { lr = 1 }, verify = true })
end

local references = {}
local function reference(model, key, batch)
  key = key .. batch
  references[key] = references[key] or exact.trace(plan_of(model, piper.strategy(), batch), data)
  return references[key]
end

local function compare(name, model, key, batch, strategy)
  local got, want = exact.trace(plan_of(model, strategy, batch), data), reference(model, key, batch)
  if not tap.ok(got == want, name) then tap.diag(exact.difference(got, want)) end
end

-- Models x levels x schedules x microbatches x devices.
local schedules = short and { "one_f_one_b" } or { "gpipe", "one_f_one_b" }
for _, kind in ipairs(exact.kinds) do
  local model = exact.model(kind, 2)
  for _, flags in ipairs(exact.zero) do
    for _, schedule in ipairs(schedules) do
      for _, microbatches in ipairs(short and { 3 } or { 1, 2, 3, 8 }) do
        for _, devices in ipairs(short and { 2 } or { 2, 4 }) do
          local batch = microbatches == 8 and 96 or 24
          compare(("%s: %s, %s, %d microbatches, %d devices a stage"):format(kind, flags[1], schedule, microbatches,
            devices), model, kind, batch, exact.strategy(schedule, 2, microbatches, devices, nil, flags[2]))
        end
      end
    end
  end
end

-- Parameters that no number of devices divides, fewer elements than devices; buckets of one element, of
-- a prime number of bytes, of exactly one layer and of more than the model.
local odd = piper.model("odd", function(m)
  local x = m:input("x", { "batch", 4 }, "f32")
  local function whole(i) return (i * 5 + i // 7) % 3 - 1 end
  local h = nn.linear(x, "wide", { out = 31, init = whole }) -- 4 * 31 and 31
  h = nn.relu(nn.linear(h, "narrow", { out = 1, init = whole })) -- 31 and 1
  h = nn.linear(h, "three", { out = 3, bias = false, init = whole }) -- 3
  m:loss(nn.sum_squares(nn.linear(h, "seven", { out = 7, bias = true, init = whole }))) -- 21 and 7
end)
local sizes = piper.model("sizes", function(m)
  local x = m:input("x", { "batch", 4 }, "f32")
  local h = nn.linear(x, "first", { out = 1, bias = false, init = function(i) return i % 3 - 1 end })
  for _, n in ipairs { 1, 3, 7, 1023 } do
    local w = nn.param("of" .. n, { 1, n }, { init = function(i) return (i * 7 + i // 5) % 3 - 1 end })
    m:loss(nn.sum_squares(nn.matmul(h, w)))
  end
end)
local KIB = 1 / 1024
for _, model in ipairs { odd, sizes } do
  for _, flags in ipairs(exact.zero) do
    for _, bucket_size in ipairs { 8 / (1 << 20), 1009 / (1 << 20), 31 * 5 * 8 / (1 << 20), 8 * KIB, 64 } do
      for _, devices in ipairs(short and { 4 } or { 2, 3, 4 }) do
        local s, set = piper.strategy(), {}
        for j = 1, devices do set[j] = devices - j end
        s:split { num_microbatches = 2 }
        s:place { filter = {}, devices = set }
        local spec = { filter = {}, devices = set, bucket_size = bucket_size }
        for k, v in pairs(flags[2]) do spec[k] = v end
        s:replicate(spec)
        compare(("%s: %s, buckets of %.0f bytes, %d devices"):format(model.name, flags[1], bucket_size * (1 << 20), devices),
          model, model.name, 24, s)
      end
    end
  end
end

-- Tied parameters over stages of different size, and a bucket of several chunks: the groups of a bucket
-- that is reduced by microbatch differ in size.
for _, kind in ipairs { "tied", "plain" } do
  for _, stage_sizes in ipairs { { 1, 2 }, { 2, 1 }, { 4, 2 }, { 2, 3 } } do
    for _, flags in ipairs(exact.zero) do
      compare(("%s: %s, stages on %s devices"):format(kind, flags[1], table.concat(stage_sizes, " and ")),
        exact.model(kind, 2), kind, 24, exact.strategy("one_f_one_b", 2, 2, nil, stage_sizes, flags[2]))
    end
  end
end

-- The two directions of a bidirectional pipeline: microbatches of one chunk on different sets.
for _, kind in ipairs { "plain", "tied", "skip" } do
  for _, flags in ipairs(exact.zero) do
    for devices = 1, 2 do
      local s, set = piper.strategy(), {}
      for r = 0, 1 do
        set[r] = {}
        for j = 1, devices do set[r][j] = r * devices + j - 1 end
      end
      local all = table.move(set[1], 1, devices, devices + 1, table.move(set[0], 1, devices, 1, {}))
      s:split { num_microbatches = 4 }
      for stage = 0, 1 do
        s:place { filter = { PP = stage, MB = { 0, 1 } }, devices = set[stage] }
        s:place { filter = { PP = stage, MB = { 2, 3 } }, devices = set[1 - stage] }
        local spec = { filter = { PP = stage }, devices = all }
        for k, v in pairs(flags[2]) do spec[k] = v end
        s:replicate(spec)
      end
      compare(("%s: %s, two directions, %d devices each"):format(kind, flags[1], devices), exact.model(kind, 2), kind, 24, s)
    end
  end
end
tap.done()
