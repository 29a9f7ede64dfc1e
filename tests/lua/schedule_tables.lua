-- The schedule builders give exactly the tables of tests/data/schedules, for any number of ranks,
-- microbatches and stages they give a schedule that can run, and their options are checked.
local tap = require "tap"
local schedules = require "piper.schedules"
local tables = require "schedule_table"

local n = 0
for _, row in ipairs(tables.all()) do
  local list = tables.build(schedules, row)
  if list then
    tap.is(schedules.text(list), row.text, row.file)
    tap.ok(schedules.check(list), row.file .. " passes its own check")
    n = n + 1
  end
end
tap.is(n, 54, "all exact tables were compared")

-- Where the tables do not reach: fewer microbatches than ranks, odd numbers, many stages. 'check'
-- knows that every pass of every microbatch is there and that no ranks wait in a circle.
local names = {}
for _, name in pairs(tables.builders) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do
  local loop = name:find "interleaved" or name == "looped_bfs"
  local count = 0
  for _, ranks in ipairs { 1, 2, 3, 4, 6 } do
    for _, microbatches in ipairs { 1, 2, 3, 4, 5, 7, 9, 14 } do
      for stages = loop and 1 or 2, loop and 3 or 2 do
        if name ~= "dualpipe" or ranks % 2 == 0 then
          schedules.check(schedules[name] {
            ranks = ranks, microbatches = microbatches, stages_per_rank = loop and stages or nil,
          })
          count = count + 1
        end
      end
    end
  end
  tap.ok(count > 0, ("%s: %d sizes, all can run"):format(name, count))
end

-- Placement.
local function places(list)
  local words = {}
  for _, d in ipairs(list) do
    if d.op == "place" then
      local mb = d.filter.MB and ("/" .. table.concat(d.filter.MB, ",")) or ""
      words[#words + 1] = ("%d%s@%s"):format(d.filter.PP, mb, table.concat(d.devices, "+"))
    end
  end
  return table.concat(words, " ")
end
tap.is(places(schedules.one_f_one_b { ranks = 3, microbatches = 2 }), "0@0 1@1 2@2", "stage s on rank s")
tap.is(places(schedules.interleaved_one_f_one_b { ranks = 2, microbatches = 2, stages_per_rank = 3 }),
  "0@0 1@1 2@0 3@1 4@0 5@1", "round and round")
tap.is(places(schedules.zbv { ranks = 2, microbatches = 2 }), "0@0 1@1 2@1 3@0", "there and back")
tap.is(places(schedules.dualpipe { ranks = 2, microbatches = 4 }), "0/0,1@0 0/2,3@1 1/0,1@1 1/2,3@0",
  "each half of the microbatches from its own end")
tap.is(places(schedules.dualpipe { ranks = 2, microbatches = 3 }), "0/0,1@0 0/2@1 1/0,1@1 1/2@0", "an odd number of them")
tap.is(places(schedules.dualpipe { ranks = 2, microbatches = 1 }), "0@0 1@1", "a single one has one direction")
tap.is(places(schedules.one_f_one_b { ranks = 2, microbatches = 2, devices = { { 4, 5 }, { 6, 7 } } }), "0@4+5 1@6+7",
  "devices: a set for each rank")
tap.is(places(schedules.gpipe { ranks = 2, microbatches = 2, devices = false }), "", "devices = false: no placement")

-- Options.
tap.error_matches(function() schedules.gpipe { rank = 2, microbatches = 1 } end,
  'schedule_tables.lua:%d+: gpipe: unknown field "rank" %(did you mean "ranks"%?%)')
tap.error_matches(function() schedules.one_f_one_b { ranks = 0, microbatches = 1 } end, 'one_f_one_b: field "ranks" is 0')
tap.error_matches(function() schedules.one_f_one_b { ranks = 2, microbatches = 1.5 } end, 'field "microbatches" is 1.5')
tap.error_matches(function() schedules.gpipe { ranks = 2, microbatches = 1, devices = { { 0 } } } end,
  "gpipe: devices lists 1 device sets for 2 ranks")
tap.error_matches(function() schedules.gpipe { ranks = 2, microbatches = 1, devices = { { 0 }, 5 } } end,
  "gpipe: the device set of rank 1 is 5: it is a list such as { 5 }")
tap.error_matches(function() schedules.zbv { ranks = 2, microbatches = 1, stages_per_rank = 3 } end,
  'zbv: field "stages_per_rank" is 3: its placement, "v", has 2 on each rank')
tap.error_matches(function() schedules.dualpipe { ranks = 3, microbatches = 6 } end,
  'dualpipe: field "ranks" is 3: .* the smallest above is 4')
tap.error_matches(function() schedules.zbw {} end, 'schedules: there is no "zbw" %(did you mean "zbv"%?%)')
tap.done()
