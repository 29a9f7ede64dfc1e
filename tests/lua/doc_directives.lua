-- doc/directives.md tells the truth: each difference it shows is that of the DAGs that the script above it
-- prints, and each message is what the piece of script beside it gives.
--   DOC_UPDATE=1 srcdir=. LUA_PATH='tests/lib/?.lua;;' build/piper tests/lua/doc_directives.lua
-- writes the differences and the messages anew.
local tap = require "tap"
local dag_diff = require "dag_diff"
local piper = require "piper"
local nn = piper.nn

local path = os.getenv "srcdir" .. "/doc/directives.md"
local f = assert(io.open(path))
local page = f:read "a"
f:close()

-- What a script prints, a list of texts.
local function printed(script, name)
  local out = {}
  local env = setmetatable({ print = function(...)
    local words = table.pack(...)
    for k = 1, words.n do words[k] = tostring(words[k]) end
    out[#out + 1] = table.concat(words, "\t")
  end }, { __index = _G })
  assert(load(script, "@" .. name, "t", env))()
  return out
end

-- The page's blocks in order: the first DAG that a script prints is "before" in all differences up to the
-- next script; the k-th of these has the one printed after it.
local differences, script, k = 0, nil, nil
local updated = ("\n" .. page):gsub("(\n```(%l+)\n)(.-)(\n```\n)", function(open, kind, body, close)
  if kind == "lua" then
    script, k = printed(body, "train.lua"), 1
  elseif kind == "diff" then
    k = k + 1
    differences = differences + 1
    local want = dag_diff.diff(script[1], script[k] or "")
    if os.getenv "DOC_UPDATE" then return open .. want .. close end
    tap.is(want, body, "difference " .. differences)
  end
end):sub(2)
tap.ok(differences >= 12, "differences of all directives")
for _, directive in ipairs { "place", "replicate", "shard", "split", "recompute", "order" } do
  tap.ok(page:find("\n## " .. directive .. "\n", 1, true), "a section on " .. directive)
end

-- Messages: rows "| `piece of script` | `message` |", for a model of two stages, or of experts.
local function stages(name)
  return piper.model(name, function(m)
    local h = m:input("x", { "batch", 4 }, "f32")
    piper.annotate("PP", function() h = nn.linear(h, "a", { out = 4, bias = false }) end)
    piper.annotate("PP", function() m:loss(nn.sum_squares(nn.linear(h, "b", { out = 4, bias = false }))) end)
  end)
end
local function experts(name)
  return piper.model(name, function(m)
    local x = m:input("x", { "batch", 4, 4 }, "f32")
    m:loss(nn.mean(nn.moe(x, "mlp", { experts = 4, top_k = 2, width = 4 })))
  end)
end
local messages, section = 0, nil
local function message_of(code)
  local s = piper.strategy()
  local fine, got = pcall(function()
    assert(load("local s, piper = ... " .. code, "@train.lua"))(s, piper)
    piper.compile((section == "shard" and experts or stages) "m", s, { batch = 8 })
  end)
  got = fine and "no error" or tostring(got):match "^%S+:%d+: (.*)$" or tostring(got)
  return (got:gsub("[%w_./]*%.lua:%d+", "train.lua:9"))
end
local lines = {}
for line in (updated .. "\n"):gmatch "([^\n]*)\n" do
  section = line:match "^## (%a+)$" or section
  local code, message = line:match "^| `(s:[^`]+)` | `([^`]+)`"
  if code and os.getenv "DOC_UPDATE" then
    line = ("| `%s` | `%s` |"):format(code, message_of(code))
  elseif code then
    tap.is(message_of(code), message, section .. ": " .. code)
    messages = messages + 1
  end
  lines[#lines + 1] = line
end
if os.getenv "DOC_UPDATE" then
  f = assert(io.open(path, "w"))
  f:write(table.concat(lines, "\n", 1, #lines - 1), "\n")
  f:close()
  return
end
tap.ok(messages >= 20, "messages of all directives")
tap.done()
