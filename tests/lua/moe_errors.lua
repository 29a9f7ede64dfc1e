-- shard: what a user can get wrong, each with the script's line and what would be right.
local tap = require "tap"
local piper = require "piper"
local nn = piper.nn

local model = piper.model("m", function(m)
  local h = m:input("x", { "batch", 3, 4 }, "f32")
  for stage = 0, 1 do
    piper.annotate("PP", function()
      h = h + nn.moe(nn.rmsnorm(h, "norm" .. stage), "moe" .. stage, { experts = 6, top_k = 2, width = 8 })
      if stage == 1 then m:loss(nn.sum_squares(h)) end
    end)
  end
end)

-- Stage p, with its experts, on the devices of places[p + 1].
local function placed(places)
  local s = piper.strategy()
  for p, devices in ipairs(places) do
    s:place { filter = { PP = p - 1 }, devices = devices }
    if #devices > 1 then s:replicate { filter = { PP = p - 1, EP = false }, devices = devices } end
  end
  return s
end
local TWO = { { 0, 1 }, { 2, 3 } }

local function compile(s) return piper.compile(model, s, { batch = 12 }) end

-- The message matches 'pattern', after "file:line: shard: ".
local function fails(pattern, places, fill)
  tap.error_matches(function()
    local s = placed(places)
    fill(s)
    compile(s)
  end, "^%S*moe_errors.lua:%d+: shard: " .. pattern, pattern)
end

compile(placed(TWO):shard { filter = { EP = "*", PP = 0 }, devices = { 0, 1 } }:shard {
  filter = { EP = "*", PP = 1 }, devices = { { 2 }, { 3 } } })

-- Filters.
fails("the chunk { PP = 0 } .* has no experts: those of nn.moe are in a scope EP of their own, which { EP = \"%*\" } matches",
  TWO, function(s) s:shard { filter = { PP = 0 }, devices = { 0, 1 } } end)
fails(".*PP = 2 } matches nothing; PP runs from 0 to 1", TWO,
  function(s) s:shard { filter = { PP = 2, EP = "*" }, devices = { 0, 1 } } end)
fails("experts are spread for all passes alike: leave PASS out of the filter", TWO,
  function(s) s:shard { filter = { PP = 0, EP = "*", PASS = "F" }, devices = { 0, 1 } } end)
fails("the filter matches only a part of the chunk { PP = 0, EP = 0 } .* and not its 0F1: all microbatches of a chunk are spread, or none",
  TWO, function(s)
    s:split { num_microbatches = 2 }
    s:shard { filter = { MB = 0, PP = 0, EP = "*" }, devices = { 0, 1 } }
  end)

-- Devices.
fails("the 6 experts of the chunk { .* } %b() do not divide over 4 devices", { { 0, 1, 2, 3 }, { 4 } },
  function(s) s:shard { filter = { PP = 0, EP = "*" }, devices = { 0, 1, 2, 3 } } end)
fails("the chunk { .* } %b() is placed on devices 2%-3, but its experts are spread over devices 0%-1", TWO,
  function(s) s:shard { filter = { EP = "*" }, devices = { 0, 1 } } end)
fails("the chunk { .* } %b() is placed on devices 0%-1, which are not groups of devices 1,0 in the same order: neighbours in the placement make a group of 2",
  TWO, function(s) s:shard { filter = { PP = 0, EP = "*" }, devices = { 1, 0 } } end)
fails("the chunk { .* } %b() is placed on devices 0%-3, which are not groups of devices 0,2,1,3 in the same order", { { 0, 1, 2, 3 }, { 4 } },
  function(s) s:shard { filter = { PP = 0, EP = "*" }, devices = { { 0, 2 }, { 1, 3 } } } end)
fails(".*device 0 .*twice", TWO, function(s) s:shard { filter = { PP = 0, EP = "*" }, devices = { { 0, 1 }, { 0, 1 } } } end)
fails(".*group 2 of devices has 1, group 1 has 2: groups are of one size", TWO,
  function(s) s:shard { filter = { PP = 0, EP = "*" }, devices = { { 0, 1 }, { 2 } } } end)
fails(".*devices.*empty", TWO, function(s) s:shard { filter = { PP = 0, EP = "*" }, devices = {} } end)
fails("device 2 of the list is { 1 }, not a whole number of at least 0", TWO,
  function(s) s:shard { filter = { PP = 0, EP = "*" }, devices = { 0, { 1 } } } end)
fails(".*devices.*", TWO, function(s) s:shard { filter = { PP = 0, EP = "*" } } end)
fails(".*axis", TWO, function(s) s:shard { filter = { PP = 0, EP = "*" }, devices = { 0, 1 }, axis = 1 } end)
fails(".*stream", TWO, function(s) s:shard { filter = { PP = 0, EP = "*" }, devices = { 0, 1 }, stream = 3 } end)

-- Two of them.
fails("the chunk { .* } %b() is spread over 1 device here and over 2 at %S*moe_errors.lua:%d+", TWO, function(s)
  s:shard { filter = { PP = 0, EP = "*" }, devices = { 0, 1 } }
  s:shard { filter = { PP = 0, EP = "*" }, devices = { { 0 }, { 1 } } }
end)
fails('the chunk { .* } %b() exchanges tokens on "b" here and on "ep_stream" at %S*moe_errors.lua:%d+', TWO, function(s)
  s:shard { filter = { PP = 0, EP = "*" }, devices = { 0, 1 } }
  s:shard { filter = { PP = 0, EP = "*" }, devices = { 0, 1 }, stream = "b" }
end)
fails("0F1 of the chunk { .* } %b() is spread over 2 devices, 0F0 over 1 %(%S*moe_errors.lua:%d+%)", TWO, function(s)
  s:split { num_microbatches = 2 }
  s:shard { filter = { MB = 0, PP = 0, EP = "*" }, devices = { { 0 }, { 1 } } }
  s:shard { filter = { MB = 1, PP = 0, EP = "*" }, devices = { 0, 1 } }
end)
compile(placed { { 0, 1 }, { 2 } }:shard { filter = { EP = 0 }, devices = { 0, 1 } }
  :shard { filter = { PP = 0, EP = 0 }, devices = { 0, 1 }, stream = "ep_stream" })
tap.ok(true, "the same twice is no conflict")

-- What is no expert is a copy on each device of the group, which replicate keeps equal.
local s = piper.strategy():place { filter = {}, devices = { 0, 1 } }:shard { filter = { EP = "*" }, devices = { 0, 1 } }
tap.error_matches(function() compile(s) end, "^%S*moe_errors.lua:%d+: place: .*add a replicate directive", "the rest is replicated")

tap.done()
