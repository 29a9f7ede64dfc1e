-- Strategies as JSON: the format of the paper's schedules is read, saved files read back as the same
-- strategy, and whatever a file holds, loading it succeeds or says what is wrong where.
local tap = require "tap"
local strategy = require "piper.strategy"
local schedules = require "piper.schedules"

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
local function load(text)
  write(text)
  return strategy.load(path)
end

local function show(v)
  if type(v) ~= "table" then return tostring(v) end
  local keys, words = {}, {}
  for k in pairs(v) do
    if k ~= "line" and k ~= "schedule" and k ~= "rank_in_schedule" then keys[#keys + 1] = k end
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for i, k in ipairs(keys) do words[i] = tostring(k) .. "=" .. show(v[k]) end
  return "{" .. table.concat(words, ",") .. "}"
end

-- Saved strategies.
local s = strategy()
s:place { filter = { PP = 0, MB = "*", EP = false }, devices = { 0, 1 }, stream = "pp_stream" }
s:place { filter = { PP = { 1, 2 } }, devices = { 2 } }
s:replicate { filter = { ['odd "tag"\\'] = 0 }, devices = { 0, 1 }, reduce_stream = "dp_stream", bucket_size = 0.5 }
s:replicate { filter = {}, devices = { 0, 1 }, bucket_size = 4.0 }
s:split { num_microbatches = 4 }
s:order { filters = { { PP = 0, MB = 0, PASS = "F" }, { { PP = 0, MB = 1, PASS = "F" }, { PP = 0, MB = 0, PASS = { "BI", "BW" } } }, {} } }
s:save(path)
local text = read()
tap.is(text, [=[
[
  { "op": "place", "filter": { "PP": 0, "EP": null, "MB": "*" }, "devices": [0, 1], "stream": "pp_stream" },
  { "op": "place", "filter": { "PP": [1, 2] }, "devices": [2] },
  { "op": "replicate", "filter": { "odd \"tag\"\\": 0 }, "devices": [0, 1], "reduce_stream": "dp_stream", "bucket_size": 0.5 },
  { "op": "replicate", "filter": {}, "devices": [0, 1], "bucket_size": 4 },
  { "op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 4 },
  { "op": "order", "filters": [
    [{ "PP": 0, "MB": 0, "PASS": "F" }],
    [{ "PP": 0, "MB": 1, "PASS": "F" }, { "PP": 0, "MB": 0, "PASS": ["BI", "BW"] }],
    [{}]
  ] }
]
]=], "the canonical form")
local again = strategy.load(path)
tap.is(show(again.directives), show(s.directives), "reads back as the same strategy")
tap.is(again.directives[2].line, path .. ":3", "a directive's line is the file's")
tap.is(again.directives[6].line, path .. ":7", "... after lists, too")
again:save(path)
tap.is(read(), text, "and saves as the same bytes")
strategy():save(path)
tap.is(#strategy.load(path).directives, 0, "an empty strategy")

for _, name in ipairs { "one_f_one_b", "dualpipe", "zbv" } do
  local with = strategy():add(schedules[name] { ranks = 4, microbatches = 9 })
  with:save(path)
  tap.is(show(strategy.load(path).directives), show(with.directives), name .. " goes through a file")
end

-- The paper's files.
for _, name in ipairs { "dp2", "pp2_dp2_ep2", "pp2_dp2_ep2_zero3", "pp4_dp2_ep2_v_placement" } do
  local file = ("%s/tests/data/paper-schedules/%s.json"):format(os.getenv "srcdir", name)
  local f = assert(io.open(file))
  local content = f:read "a"
  f:close()
  local fields = {}
  for _, field in ipairs(strategy.FIELDS.replicate) do fields[field[1]] = true end
  local known = (strategy.FIELDS.shard or not content:find '"shard"') and (fields.shard_params or not content:find '"shard_params"')
  local fine, loaded = pcall(strategy.load, file)
  if known then
    local _, count = content:gsub('"op"', "")
    tap.ok(fine and #loaded.directives == count, name .. ".json")
  else
    tap.ok(not fine and (loaded:find '"op" is "shard", not one of' or loaded:find "unknown field"), name .. ".json: what is not known is said")
  end
end

-- Other spellings that the paper's compiler takes.
local loose = load [=[
[{"op":"place","filter":{"PP":"0","MB":["1",2],"EP":null,"TP":"*"},"device":["0", 1], "stream": null},
 {"op":"place","filter":{"PP":1},"device":3},
 {"op":"split","filter":{},"dim_name":"MB","num_microbatches":"2"},
 {"op":"order","filters":[{"PP":"0","PASS":"F"},[{"PP":0,"PASS":"B"}]]}]
]=]
tap.is(show(loose.directives[1].filter), "{EP=false,MB={1=1,2=2},PP=0,TP=*}", "indices as strings, null, *")
tap.is(show(loose.directives[1].devices), "{1=0,2=1}", "device for devices")
tap.is(loose.directives[1].stream, nil, "null for a field that is not set")
tap.is(show(loose.directives[2].devices), "{1=3}", "a single device")
tap.is(loose.directives[3].num_microbatches, 2, "a number as a string")
tap.is(#loose.directives[4].filters, 2, "flat groups")
tap.is(loose.directives[4].line, path .. ":4", "each with its line")

-- Mistakes.
local function fails(content, pattern)
  write(content)
  tap.error_matches(function() strategy.load(path) end, "strategy_json.lua:%d+: load: [^ ]*" .. pattern)
end
fails('[\n  { "op": "place", }\n]', ":2:%d+: .*expected")
fails('[{"op": "split"', ":1:%d+: ")
fails("", ":1:%d+: ")
fails("[1, 2] x", ":1:%d+: end of file expected")
fails('[{"op": "split", "op": "split"}]', ":1:%d+: duplicate object key")
fails('[{"op": "a\\u0000b"}]', ":1:%d+: .*0000")
fails('[{"op": "a\0b"}]', ":1:%d+: ")
fails('["\xff\xfe"]', ":1:%d+: ")
fails("[99999999999999999999]", ":1:%d+: too big integer")
fails("[1e999]", ":1:%d+: real number overflow")
fails(("["):rep(33) .. ("]"):rep(33), ":1:33: values are nested more than 32 deep")
fails("\n" .. ("["):rep(100000), ":2:33: values are nested more than 32 deep")
fails('[{"op": "' .. ("["):rep(100) .. '"}]', ':1: "op" is "%[')
fails("{}", ": is an object; a strategy is a list")
fails('"text"', ":1:%d+: ")
fails("[\n3]", ":2: a directive is an object with an \"op\", not 3")
fails('[{}, {"op": "plaec"}]', ':1: "op" is missing: it is one of')
fails('[{"op": "plaec"}]', ':1: "op" is "plaec", not one of .*%(did you mean "place"%?%)')
fails('[{"op": ["place"]}]', ':1: "op" is')
for _, op in ipairs { "shard_tensor", "ring_exchange", "fuse_collectives", "mesh", "layout" } do
  fails(('[\n\n{"op": "%s"}]'):format(op), (':3: the op "%s" is not yet supported; there are order, place, '):format(op))
end
fails('[{"op": "place", "filter": {}, "devcies": [0]}]', ':1: place: unknown field "devcies" %(did you mean "devices"%?%)')
fails('[{"op": "place", "filter": {}, "device": [0], "devices": [0]}]', ':1: place: has both "device" and "devices"')
fails('[{"op": "place", "filter": {}, "devices": 0}]', ':1: place: field "devices" is 0, not a list')
fails('[{"op": "place", "filter": {}, "devices": []}]', ":1: place: devices is empty")
fails('[{"op": "place", "filter": {}, "devices": [0.5]}]', ":1: place: device 1 of the list is 0.5")
fails('[{"op": "place", "filter": [], "devices": [0]}]', ":1: place: a filter is an object such as")
fails('[{"op": "place", "filter": {"": 1}, "devices": [0]}]', ":1: place: the filter .* has no tag before 1")
fails('[{"op": "place", "filter": {"PP": "x"}, "devices": [0]}]', ':1: place: PP = "x" in the filter')
fails('[{"op": "place", "filter": {"PP": {"a": 1}}, "devices": [0]}]', ":1: place: PP = { a = 1 } in the filter")
fails('[{"op": "place", "filter": {"PP": []}, "devices": [0]}]', ":1: place: PP = {} in the filter")
fails('[{"op": "place", "filter": {"PASS": null}, "devices": [0]}]', ":1: place: PASS in the filter")
fails('[{"op": "place"}]', ':1: place: field "devices" is missing')
fails('[{"op": "order", "filters": [[], []]}]', ":1: order: group 1 is empty")
fails('[{"op": "order", "filters": {}}]', ':1: order: filters lists at least two groups')
fails('[{"op": "order", "filters": [3, 4]}]', ":1: order: group 1: a filter is an object")
fails('[{"op": "split", "num_microbatches": 0}]', ':1: split: field "num_microbatches" is 0')
fails('[{"op": "split", "num_microbatches": "many"}]', ':1: split: field "num_microbatches" is "many"')
fails('[{"op": "split", "num_microbatches": true, "filter": {}}]', ':1: split: field "num_microbatches" is true')
tap.error_matches(function() strategy.load "/no/such/file" end, "strategy_json.lua:%d+: load: /no/such/file: No such file")
tap.error_matches(function() strategy.load "/" end, "strategy_json.lua:%d+: load: /: Is a directory")
tap.error_matches(function() strategy.load() end, "load: argument 1 is missing")
local link = os.tmpname() -- to a device: it is written to, and neither of them replaced
assert(os.remove(link) and os.execute("ln -s /dev/full " .. link))
tap.error_matches(function() s:save(link) end, "strategy_json.lua:%d+: save: .*: No space left")
tap.ok(os.execute("test -L " .. link), "a link is written through")
os.remove(link)
tap.error_matches(function() s:save "/no/such/file" end, "strategy_json.lua:%d+: save: /no/such/file.tmp: No such file")
tap.error_matches(function() strategy():place { filter = { ["\xff"] = 0 }, devices = { 0 } }:save(path) end,
  "save: .*: a tag is not UTF%-8")

-- Whatever a file holds, it loads or it is an error with a position of the script.
local seed = 4
local function random(n)
  seed = (seed * 1103515245 + 12345) % 2147483648
  return seed // 65536 % n + 1
end
local loaded, refused, bad = 0, 0, nil
for _ = 1, 4000 do
  local t = text
  for _ = 1, random(4) do
    local i, kind = random(#t), random(4)
    if kind == 1 then t = t:sub(1, i - 1) .. t:sub(i + random(9))
    elseif kind == 2 then t = t:sub(1, i) .. string.char(random(256) - 1) .. t:sub(i + 1)
    elseif kind == 3 then t = t:sub(1, i) .. t:sub(random(#t), random(#t)) .. t:sub(i + 1)
    else t = t:sub(1, i - 1) .. ({ "{", "[", "]", "}", "null", "-1", '"', ",", "1e5", '"*"' })[random(10)] .. t:sub(i + 1) end
  end
  write(t)
  local fine, message = pcall(strategy.load, path)
  if fine then
    loaded = loaded + 1
    message:save(path)
    strategy.load(path)
  else
    refused = refused + 1
    if not tostring(message):find "^[^\n]*strategy_json.lua:%d+: load: [^%c]+$" then bad = bad or tostring(message) end
  end
end
tap.ok(loaded > 50 and refused > 1000 and not bad, ("4000 damaged files: %d load, %d are refused"):format(loaded, refused))
if bad then tap.diag(bad) end
os.remove(path)
tap.done()
