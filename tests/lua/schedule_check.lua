-- schedules.check names what is wrong with a schedule, and where: rank and column.
local tap = require "tap"
local schedules = require "piper.schedules"
local tables = require "schedule_table"

-- Faults of a schedule written by hand.
local function broken(change, devices)
  local s = schedules.one_f_one_b { ranks = 2, microbatches = 3, devices = devices }
  local orders = {}
  for _, d in ipairs(s) do
    if d.op == "order" then orders[#orders + 1] = d.filters end
  end
  change(orders, s)
  return function() schedules.check(s) end
end
local F = "F"
local function act(pp, pass, mb) return { PP = pp, PASS = pass, MB = mb } end

tap.error_matches(broken(function(o) table.remove(o[2], 4) end),
  "schedule_check.lua:%d+: check: rank 1: 1B1 is missing %(5 columns; 1B0 is at rank 1, column 2%)")
tap.error_matches(broken(function(o) o[2][5] = act(1, F, 0) end),
  "check: rank 1, column 5: 1F0 again %(first at rank 1, column 1%)")
tap.error_matches(broken(function(o) o[1][1], o[1][3] = o[1][3], o[1][1] end),
  "check: rank 0, column 1: 0B0 comes before 0F0 %(at rank 0, column 3%)")
tap.error_matches(broken(function(o) o[1][2] = act(0, F, 3) end),
  "check: rank 0, column 2: 0F3, but microbatches run from 0 to 2")
tap.error_matches(broken(function(o) table.insert(o[1], act(3, F, 0)) end),
  "check: rank 0, column 7: 3F0, but no place matches stage 3 of microbatch 0")
tap.error_matches(broken(function(o) table.insert(o[1], act(3, F, 0)) end, false),
  "check: rank 0, column 7: 3F0, but the other actions are of the stages 0 to 1")
tap.error_matches(broken(function(o) o[2][2] = act(1, "BI", 0) end), "check: rank 1: 1W0 is missing")
tap.error_matches(broken(function(o) table.insert(o[2], act(1, "BI", 0)) end),
  "check: rank 1, column 7: 1I0, but 1B0 is at rank 1, column 2: a backward pass is either fused or split")
tap.error_matches(broken(function(o) o[2][2].PASS = nil end), "rank 1, column 2: .* does not name one PP, one MB and one PASS")
tap.error_matches(broken(function(o) o[2][2] = 7 end), "check: rank 1, column 2 is 7, not a table")
tap.error_matches(broken(function(_, s) table.remove(s, 1) end), 'check: the list has no split')
tap.error_matches(broken(function(_, s) s[5].filters = {} end), "check: rank 1's order is empty")
tap.error_matches(function() schedules.check { { op = "split", num_microbatches = 1 } } end, "check: the list has no order")
tap.error_matches(function() schedules.check { 3 } end, "check: element 1 is 3, not a directive")
tap.error_matches(broken(function(o) o[1][2], o[1][3] = o[1][3], o[1][2] o[2][1], o[2][3] = o[2][3], o[2][1]
  o[2][2], o[2][4] = o[2][4], o[2][2] end),
  "check: the ranks wait for each other: rank 0, column 2: 0B0 waits for 1B0 %(rank 1, column 4%); "
  .. "rank 1, column 1: 1F1 waits for 0F1 %(rank 0, column 3%)$")
tap.error_matches(broken(function(o) for _, g in ipairs(o[2]) do g.PP = 2 end end, false),
  "check: rank 1, column 1: 2F0, but stage 1 is in no order")
tap.ok(schedules.check(schedules.parse "0F0 0F1 (0R0+0B0) 0R1 0B1"), "recomputed forward passes are allowed")
tap.error_matches(function() schedules.check(schedules.parse "0F0 0B0 0R0") end,
  "rank 0, column 3: 0R0 comes after 0B0 %(at rank 0, column 2%)")

-- A schedule and a placement that do not fit.
local zbv = schedules.zbv { ranks = 4, microbatches = 4, devices = false }
for stage = 0, 7 do table.insert(zbv, { op = "place", filter = { PP = stage }, devices = { stage % 4 } }) end
tap.error_matches(function() schedules.check(zbv) end,
  "check: rank 0, column %d+: 7F0: stage 7 is placed on { 3 }; rank 0's order is for { 0 } %(0F0, at rank 0, column 1%), "
  .. "so stage 7 has to be there too")
local dualpipe = schedules.dualpipe { ranks = 2, microbatches = 4, devices = false }
for stage = 0, 1 do table.insert(dualpipe, { op = "place", filter = { PP = stage }, devices = { stage } }) end
tap.error_matches(function() schedules.check(dualpipe) end, "check: rank 0, column 2: 1F2: stage 1 is placed on { 1 }")
local some = schedules.one_f_one_b { ranks = 2, microbatches = 2, devices = false }
table.insert(some, { op = "place", filter = { PP = { 0, 1 }, MB = 0 }, devices = { 0, 1 } })
tap.error_matches(function() schedules.check(some) end, "check: rank 0, column 2: 0F1, but no place matches stage 0 of microbatch 1")
some[#some].filter.MB = "*"
tap.ok(schedules.check(some), "a place may name lists and *")

-- Text.
tap.error_matches(function() schedules.parse "0F0 0X0" end, "schedule_check.lua:%d+: parse: rank 0, column 2: \"0X0\" is not an action")
tap.error_matches(function() schedules.parse "# none\n0F0\n(0F0 0B0)" end, 'parse: rank 1, column 1: "%(0F0" is not')
tap.error_matches(function() schedules.parse "(0F0)" end, 'parse: rank 0, column 1: "%(0F0%)" is not')
tap.error_matches(function() schedules.parse "0F0+0B0" end, 'parse: rank 0, column 1: "0F0%+0B0" is not')
tap.error_matches(function() schedules.parse "0F99999999999999999999" end, "is not an action")
tap.error_matches(function() schedules.parse "\n#\n" end, "parse: the text has no line with actions")

-- One damaged cell of every built-in schedule is found, and the message names that cell; for an
-- action that is missing, the action.
local seed = 12345
local function random(n) -- 1 to n, the same in every run
  seed = (seed * 1103515245 + 12345) % 2147483648
  return seed // 65536 % n + 1
end

local function copy(list)
  local c = {}
  for k, v in pairs(list) do c[k] = type(v) == "table" and copy(v) or v end
  return c
end

local function text(f) return f.PP .. ({ F = "F", B = "B", BI = "I", BW = "W" })[f.PASS] .. f.MB end

-- Each damages the filter f, a member of group 'column' of 'row', and says whether it did, and what
-- the message must have ('nil': the cell).
local damages = {
  missing = function(f, row, column)
    local name = text(f)
    if row[column] == f then
      table.remove(row, column)
    else
      row[column] = row[column][1] == f and row[column][2] or row[column][1]
    end
    return true, name
  end,
  doubled = function(f, row, column)
    local at = random(#row + 1)
    table.insert(row, at, copy(f))
    return true, ("column %d"):format(at)
  end,
  ["unknown stage"] = function(f, _, _, stages)
    f.PP = stages + random(3) - 1
    return true
  end,
  ["another stage"] = function(f, _, _, stages)
    f.PP = (f.PP + random(stages - 1)) % stages
    return true
  end,
  ["unknown microbatch"] = function(f, _, _, _, microbatches)
    f.MB = microbatches + random(3) - 1
    return true
  end,
  ["another microbatch"] = function(f, _, _, _, microbatches)
    f.MB = (f.MB + random(microbatches - 1)) % microbatches
    return true
  end,
  ["another pass"] = function(f)
    local passes = { "F", "B", "BI", "BW" }
    local was = f.PASS
    f.PASS = passes[random(4)]
    return f.PASS ~= was
  end,
  ["before its forward"] = function(f, row, column)
    if f.PASS == "F" or row[column] ~= f then return false end
    table.remove(row, column)
    table.insert(row, 1, f)
    return true, "column 1"
  end,
  ["on another rank"] = function(f, row, column, _, _, rows)
    local r = random(#rows)
    if rows[r] == row or row[column] ~= f then return false end
    table.remove(row, column)
    table.insert(rows[r], #rows[r] + 1, f)
    return true, ("rank %d, column %d"):format(r - 1, #rows[r])
  end,
}
local kinds, names = {}, {}
for kind in pairs(damages) do kinds[#kinds + 1] = kind end
for _, name in pairs(tables.builders) do names[#names + 1] = name end
table.sort(kinds)
table.sort(names)

for _, name in ipairs(names) do
  for _, kind in ipairs(kinds) do
    local unnoticed
    local done = 0
    for try = 1, 60 do
      local microbatches = 5 + random(5)
      local list = copy(schedules[name] { ranks = 4, microbatches = microbatches, devices = try % 2 == 0 and false or nil })
      local rows, stages = {}, 0
      for _, d in ipairs(list) do
        if d.op == "order" then rows[#rows + 1] = d.filters end
      end
      for _, row in ipairs(rows) do
        for _, group in ipairs(row) do
          for _, f in ipairs(group[1] and group or { group }) do stages = math.max(stages, f.PP + 1) end
        end
      end
      local r = random(4)
      local column = random(#rows[r])
      local group = rows[r][column]
      local f = group[1] and group[random(2)] or group
      local before = text(f)
      local damaged, want = damages[kind](f, rows[r], column, stages, microbatches, rows)
      if damaged then
        done = done + 1
        local fine, message = pcall(schedules.check, list)
        want = want or ("rank %d, column %d"):format(r - 1, column)
        if fine or not tostring(message):find(want .. "%f[%D]") then
          unnoticed = unnoticed or ("%s of rank %d, column %d: want %s, got %s"):format(before, r - 1, column, want, message)
        end
      end
    end
    tap.ok(done > 0 and not unnoticed, ("%s, %s: %d times"):format(name, kind, done))
    if unnoticed then tap.diag(unnoticed) end
  end
end
tap.done()
