-- Strategy files that are damaged: an error with a place, never one of the library's own, or a strategy
-- that survives being written and read. The same as tests/fuzz/strategy_file.c, on its corpus (the
-- first byte of a file there chooses the reader) with single and several mistakes.
local tap = require "tap"
local hostile = require "hostile_files"

local seed = 1
local function random(n)
  seed = (seed * 1103515245 + 12345) % 2147483648
  return seed // 65536 % n + 1
end

local WORDS = { "{", "}", "[", "]", ",", ":", '"', '""', "null", "true", "-1", "1e9", "0.5", "99999999999999999999", "\n", "\0",
  "\xff", '"PP"', '"PASS"', '"op"', '"*"', "[]", "{}", "0F0", "0B0", "3W2", ";", "(", ")OVERLAP_F_B", "\\u0000", "\\" }

local function damaged(text)
  for _ = 1, random(3) do
    local at, how = random(#text + 1), random(4)
    local to = math.min(#text, at + random(8) - 1)
    if how == 1 then text = text:sub(1, at - 1) .. text:sub(to + 1)
    elseif how == 2 then text = text:sub(1, at - 1) .. WORDS[random(#WORDS)] .. text:sub(at)
    elseif how == 3 then text = text:sub(1, at - 1) .. WORDS[random(#WORDS)] .. text:sub(to + 1)
    else text = text:sub(1, to) .. text:sub(at) end
  end
  return text
end

local dir = os.getenv "srcdir" .. "/tests/data/damaged/"
local NAMES = { "csv_pair", "csv_quotes", "csv_split", "json_order", "json_place", "json_replicate", "json_shard" }
for _, name in ipairs(NAMES) do
  local f = assert(io.open(dir .. name, "rb"))
  local text = f:read "a"
  f:close()
  local kind = text:sub(1, 1) == "c" and "csv" or "json"
  text = text:sub(2)
  tap.ok(hostile.check(kind, text), name .. " is read as it is")
  local accepted, held, why = 0, true, nil
  for _ = 1, 1000 do
    local fine, result = pcall(hostile.check, kind, damaged(text))
    if not fine then held, why = false, why or result end
    if result == true then accepted = accepted + 1 end
  end
  tap.ok(held, name .. ", damaged 1000 times")
  if why then tap.diag(why) end
  tap.ok(accepted > 0 and accepted < 900, ("some of them mean something (%d)"):format(accepted))
end
tap.done()
