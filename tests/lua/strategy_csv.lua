-- PyTorch pipelining schedules: every built-in schedule goes out and comes back as itself, blanks and
-- pairs are read, and a mistake is named with its row and column.
local tap = require "tap"
local strategy = require "piper.strategy"
local schedules = require "piper.schedules"
local tables = require "schedule_table"

local path = os.tmpname()
local function write(text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end
local function read()
  local f = assert(io.open(path, "rb"))
  local text = f:read "a"
  f:close()
  return text
end
local function load(text, options)
  write(text)
  return strategy.load_csv(path, options)
end

local function show(v)
  if type(v) ~= "table" then return tostring(v) end
  local keys, words = {}, {}
  for k in pairs(v) do
    if k ~= "line" and k ~= "schedule" then keys[#keys + 1] = k end
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for i, k in ipairs(keys) do words[i] = tostring(k) .. "=" .. show(v[k]) end
  return "{" .. table.concat(words, ",") .. "}"
end

-- Built-in schedules, also with fewer microbatches than ranks.
for _, row in ipairs(tables.all()) do
  for _, microbatches in ipairs { row.microbatches, 3, 1 } do
    local size = setmetatable({ microbatches = microbatches }, { __index = row })
    local list = tables.build(schedules, size)
    if list then
      local s = strategy():add(list)
      s:save_csv(path)
      local again = strategy.load_csv(path, { placement = row.placement })
      tap.is(show(again.directives), show(s.directives), ("%s, %d microbatches"):format(row.file, microbatches))
    end
  end
end

-- The format.
strategy():add(schedules.dualpipe { ranks = 2, microbatches = 4 }):save_csv(path)
tap.is(read(), [[
0F0,1F2,0F1,1B2,(1F3;0B0)OVERLAP_F_B,1B3,0I1,0W1
0F2,1F0,0F3,1B0,(1F1;0B2)OVERLAP_F_B,1B1,0I3,0W3
]], "what is written")
local function text(content, options) return schedules.text(load(content, options)) end
tap.is(text ",0F0 , 0F1,,,,0B0,0B1\n,,1F0,1B0,1F1,1B1\n", "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1", "blanks are idle time")
tap.is(text "\xEF\xBB\xBF0F0,\"0F1\",0I0,0I1,0W0,0W1\r\n\r\n", "0F0 0F1 0I0 0I1 0W0 0W1", "a BOM, quotes, CRLF, lines at the end")
tap.is(text "0F0,( 0F1 ; 0B0 ) OVERLAP_F_B,0B1", "0F0 (0F1+0B0) 0B1", "spaces in a pair")
tap.is(text "0F0,0B0", "0F0 0B0", "no line end")

-- Placement: each row is a rank; a name or a list says which stages it may have.
local two = "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"
local function places(options)
  local words = {}
  for _, d in ipairs(load(two, options).directives) do
    if d.op == "place" then words[#words + 1] = d.filter.PP .. "@" .. table.concat(d.devices, "+") end
  end
  return table.concat(words, " ")
end
tap.is(places(), "0@0 1@1 2@1 3@0", "stages sit where their rows are")
tap.is(places { placement = "v" }, "0@0 1@1 2@1 3@0", "placement by rule")
tap.is(places { placement = { 0, 1, 1, 0 } }, "0@0 1@1 2@1 3@0", "placement as a list of ranks")
tap.is(places { devices = { { 4, 5 }, { 6, 7 } } }, "0@4+5 1@6+7 2@6+7 3@4+5", "device sets")
tap.is(places { devices = false }, "", "no placement")

local function fails(content, pattern, options)
  write(content)
  tap.error_matches(function() strategy.load_csv(path, options) end, "strategy_csv.lua:%d+: load_csv: " .. pattern)
end
fails(two, '[^ ]*: row 1, column 2: 3F0 is on rank 0, but placement "loop" puts stage 3 on rank 1', { placement = "loop" })
fails(two, '[^ ]*: row 1, column 2: 3F0 is on rank 0, but placement "single" puts stage 3 on no rank of the file', { placement = "single" })
fails(two, "[^ ]*: row 1, column 2: 3F0 is on rank 0, but the list placement puts stage 3 on rank 1", { placement = { 0, 1, 1, 1 } })
fails(two, "[^ ]*: row 1, column 2: 3F0 is on rank 0, but the list placement puts stage 3 on no rank", { placement = { 0, 1, 1 } })
fails(two, 'field "placement" is "vee", not one of "single", "loop", "v", "bidirectional"', { placement = "vee" })
fails(two, 'unknown field "place" %(fields: devices, placement%)', { place = "v" })
fails(two, "devices lists 1 device sets for 2 ranks", { devices = { { 0 } } })

-- Mistakes.
fails("0F0,0B0\n1F0,,2X0", '[^ ]*: row 2, column 3: "2X0" is not an action such as 0F3')
fails("0F0,0SEND_F0", '[^ ]*: row 1, column 2: "0SEND_F0" is communication, which Piper plans itself')
fails("0UNSHARD", '[^ ]*: row 1, column 1: "0UNSHARD" is communication')
fails("0F0,(0F1;0B0)", '[^ ]*: row 1, column 2: "%(0F1;0B0%)" is not an action')
fails("0F0,(0B0;0F1)OVERLAP_F_B", '[^ ]*: row 1, column 2: .* is not an action')
fails("0F0,(0F1;0I0)OVERLAP_F_B", '[^ ]*: row 1, column 2: .* is not an action')
fails("0F0,0R0,0B0", '[^ ]*: row 1, column 2: "0R0" is not an action')
fails("0F0,-1B0", '[^ ]*: row 1, column 2: "%-1B0" is not an action')
fails("0F0,0B0,0F99999999999999999999", "[^ ]*: row 1, column 3: .* is not an action")
fails("0F0,0F1,,0B0,,0B0", "[^ ]*: row 1, column 6: 0B0 again %(first at row 1, column 4%)")
fails("0F0,,,0B0,0B1,0F1", "[^ ]*: row 1, column 5: 0B1 comes before 0F1 %(at row 1, column 6%)")
fails("0F0,,0F1,0B0", "[^ ]*: row 1: 0B1 is missing %(3 columns; 0B0 is at row 1, column 4%)")
fails("0F0,0B0\n2F0,2B0", "[^ ]*: row 2, column 1: 2F0, but stage 1 is in no order")
fails("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1", "[^ ]*: the ranks wait for each other: row 1, column 2: 0B0 waits for 1B0 %(row 2, column 3%)")
fails("0F0,0B0\n,,\n1F0,1B0", "[^ ]*: row 2 has no action: every rank has a row")
fails("", "[^ ]*: has no actions")
fails("\n,\n", "[^ ]*: has no actions")
fails("0F0\0,0B0", "[^ ]*: row 1, column 1: .* is not an action")
tap.error_matches(function() strategy.load_csv "/no/such/file" end, "strategy_csv.lua:%d+: load_csv: /no/such/file: No such file")
tap.error_matches(function() strategy.load_csv(7) end, "load_csv: argument 1 is 7, not a string")

local s = strategy():split { num_microbatches = 2 }
s:order { filters = { { PP = 0, MB = 0, PASS = "F" }, { PP = 0, MB = 0 } } }
tap.error_matches(function() s:save_csv(path) end, "save_csv: rank 0, column 2: { MB = 0, PP = 0 } does not name one PP, one MB and one PASS")
s = strategy():add(schedules.parse "0F0 0F1 (0B0+0B1)")
tap.error_matches(function() s:save_csv(path) end, "save_csv: rank 0, column 3: PyTorch's .*; this is %(0B0%+0B1%)")
tap.error_matches(function() strategy():save_csv(path) end, "save_csv: the list has no split")

-- Whatever a file holds, it loads or it is an error with a position of the script.
local seed = 7
local function random(n)
  seed = (seed * 1103515245 + 12345) % 2147483648
  return seed // 65536 % n + 1
end
strategy():add(schedules.dualpipev { ranks = 2, microbatches = 5 }):save_csv(path)
local whole = read()
local loaded, refused, bad = 0, 0, nil
for _ = 1, 4000 do
  local t = whole
  for _ = 1, random(3) do
    local i, kind = random(#t), random(4)
    if kind == 1 then t = t:sub(1, i - 1) .. t:sub(i + random(5))
    elseif kind == 2 then t = t:sub(1, i) .. string.char(random(256) - 1) .. t:sub(i + 1)
    elseif kind == 3 then t = t:sub(1, i) .. t:sub(random(#t), random(#t)) .. t:sub(i + 1)
    else t = t:sub(1, i - 1) .. ({ ",", "\n", "0F0", "(", ";", ")OVERLAP_F_B", '"', "99" })[random(8)] .. t:sub(i + 1) end
  end
  write(t)
  local fine, message = pcall(strategy.load_csv, path)
  if fine then
    loaded = loaded + 1
  else
    refused = refused + 1
    if not tostring(message):find "^[^\n]*strategy_csv.lua:%d+: load_csv: [^%c]+$" then bad = bad or tostring(message) end
  end
end
tap.ok(loaded > 50 and refused > 1000 and not bad, ("4000 damaged files: %d load, %d are refused"):format(loaded, refused))
if bad then tap.diag(bad) end
os.remove(path)
tap.done()
