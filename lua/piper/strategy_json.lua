-- strategy_json - strategies as JSON files, in the format of the schedules of the paper's own system
-- ("Piper: A Programmable Distributed Training System", arXiv 2606.11169): a list of objects, each a
-- directive with the fields of piper.strategy's methods and its name in "op".
--
-- Read as well as the canonical form: "device" for "devices", indices and numbers as strings, groups
-- of an order that are one filter, null for a field that is not set.
local check = require "piper.check"
local core = require "piper.core"
local files = require "piper.files"
local strategy = require "piper.strategy"

local M = {}

local json = core.json

local NEWER = { shard_tensor = true, ring_exchange = true, fuse_collectives = true, mesh = true, layout = true }

-- ---- reading -----------------------------------------------------------------------------------

-- The line of every element of the list that 'text' is; it is well-formed.
local function element_lines(text)
  local lines, line, depth, at = {}, 1, 0, 1
  local expects = false -- the next value is an element
  while true do
    local i, _, c = text:find('([^%s])', at)
    if not i then return lines end
    for _ in text:sub(at, i):gmatch "\n" do line = line + 1 end
    at = i + 1
    if expects and depth == 1 and c ~= "]" then lines[#lines + 1], expects = line, false end
    if c == '"' then
      local _, last = text:find('^[^"\\]*', at)
      while text:sub(last + 1, last + 1) == "\\" do _, last = text:find('^[^"\\]*', last + 3) end
      at = last + 2
    elseif c == "[" or c == "{" then
      depth = depth + 1
      expects = depth == 1
    elseif c == "]" or c == "}" then
      depth = depth - 1
    elseif c == "," then
      expects = depth == 1
    elseif c ~= ":" then -- a number or a word
      at = text:find("[%s,%]}]", at) or at
    end
  end
end

local function is_object(v) return getmetatable(v) == json.object end

local function number_of(v)
  return type(v) == "string" and v:find "^%d+$" and math.tointeger(v) or v
end

local function list_of(v, each)
  if type(v) ~= "table" or is_object(v) then return v end
  local list = {}
  for i, item in ipairs(v) do list[i] = each(item) end
  return list
end

local function index_of(v)
  if v == json.null then return false end
  return list_of(number_of(v), number_of)
end

local function filter_of(where, v)
  if not is_object(v) then check.fail('%s: a filter is an object such as { "PP": 0 }, not %s', where, M.text(v)) end
  local filter = {}
  for tag, index in pairs(v) do filter[tag] = tag == "PASS" and index or index_of(index) end
  return filter
end

-- How the values of a kind of field (KINDS in strategy.lua) are read; others are taken as they are.
local READ = {
  filter = filter_of,
  devices = function(_, v) return list_of(v, index_of) end,
  device_groups = function(_, v)
    return list_of(v, function(group) return list_of(number_of(group), number_of) end)
  end,
  groups = function(where, groups)
    if type(groups) ~= "table" or is_object(groups) then return groups end
    local list = {}
    for i, group in ipairs(groups) do
      local here = ("%s: group %d"):format(where, i)
      if type(group) ~= "table" or is_object(group) then
        list[i] = filter_of(here, group)
      else
        if #group == 0 then check.fail("%s is empty: it lists filters", here) end
        list[i] = {}
        for m, filter in ipairs(group) do list[i][m] = filter_of(here, filter) end
      end
    end
    return list
  end,
}

-- The fields of a directive as its method takes them.
local function spec_of(where, op, object)
  local kinds, spec = {}, {}
  for _, f in ipairs(strategy.FIELDS[op]) do kinds[f[1]] = f[2] end
  for name, v in pairs(object) do
    if name ~= "op" and v ~= json.null then
      if name == "device" and kinds.devices then
        if object.devices ~= nil then check.fail('%s: has both "device" and "devices"', where) end
        name, v = "devices", type(v) == "table" and v or { v }
      end
      local kind = kinds[name]
      local declared = kind and strategy.KINDS[kind].type or ""
      if READ[kind] then v = READ[kind](where, v)
      elseif declared:find "^integer" or declared:find "^number" then v = number_of(v) end
      spec[name] = v
    end
  end
  return spec
end

---Reads a strategy from a JSON file.
---@param path string
---@return piper.Strategy
function M.load(path)
  local text = files.read("load", path)
  local list, why, line, column = json.decode(text)
  if list == nil then
    why = why:gsub(" without JSON_ALLOW_NUL", ""):gsub("%c", "?")
    check.fail("load: %s:%d:%d: %s", path, line, column, why)
  end
  if is_object(list) then check.fail('load: %s: is an object; a strategy is a list of directives, such as [{ "op": "split", ... }]', path) end
  local s, lines = strategy.new(), element_lines(text)
  for i, object in ipairs(list) do
    local at = ("%s:%d"):format(path, lines[i])
    local where = "load: " .. at
    if not is_object(object) then check.fail('%s: a directive is an object with an "op", not %s', where, M.text(object)) end
    local op = object.op
    if NEWER[op] then
      check.fail('%s: the op "%s" is not yet supported; there are %s', where, op, table.concat(strategy.OPS, ", "))
    end
    check.choice(where, '"op"', op, strategy.OPS)
    where = where .. ": " .. op
    strategy.append(s, op, spec_of(where, op, object), at, where)
  end
  return s
end

-- ---- writing -----------------------------------------------------------------------------------

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\t"] = "\\t", ["\r"] = "\\r" }

-- PP first, PASS last: a filter reads as stage, microbatch, pass.
local function tags_of(filter)
  local tags = {}
  for tag in pairs(filter) do tags[#tags + 1] = tag end
  local function rank(tag) return tag == "PP" and 0 or tag == "PASS" and 2 or 1 end
  table.sort(tags, function(a, b) return rank(a) < rank(b) or rank(a) == rank(b) and a < b end)
  return tags
end

---A value as JSON, on one line.
function M.text(v)
  if v == json.null or v == false then return "null" end
  if v == true then return "true" end
  if math.type(v) == "integer" then return ("%d"):format(v) end
  if math.type(v) == "float" then
    return v == math.floor(v) and math.abs(v) < 2 ^ 53 and ("%d"):format(math.tointeger(v)) or ("%.17g"):format(v)
  end
  if type(v) == "string" then
    return '"' .. v:gsub('["\\%c]', function(c) return ESCAPES[c] or ("\\u%04x"):format(c:byte()) end) .. '"'
  end
  local parts = {}
  if v[1] ~= nil then
    for i, item in ipairs(v) do parts[i] = M.text(item) end
    return "[" .. table.concat(parts, ", ") .. "]"
  end
  for i, tag in ipairs(tags_of(v)) do parts[i] = ("%s: %s"):format(M.text(tag), M.text(v[tag])) end
  return #parts == 0 and "{}" or "{ " .. table.concat(parts, ", ") .. " }"
end

local function directive_text(d)
  local parts = { '"op": ' .. M.text(d.op) }
  for _, f in ipairs(strategy.FIELDS[d.op]) do
    local name, v = f[1], d[f[1]]
    if f[2] == "groups" then
      local lines = {}
      for i, group in ipairs(v) do lines[i] = "    " .. M.text(group) end
      parts[#parts + 1] = ('"%s": [\n%s\n  ]'):format(name, table.concat(lines, ",\n"))
    elseif type(v) == "boolean" then -- false is null in filters only
      parts[#parts + 1] = ('"%s": %s'):format(name, v)
    elseif v ~= nil then
      parts[#parts + 1] = ('"%s": %s'):format(name, M.text(v))
    end
  end
  return "  { " .. table.concat(parts, ", ") .. " }"
end

---Writes a strategy as JSON.
---@param s piper.Strategy
---@param path string
function M.save(s, path)
  local lines = {}
  for i, d in ipairs(s.directives) do lines[i] = directive_text(d) end
  local text = #lines == 0 and "[]\n" or "[\n" .. table.concat(lines, ",\n") .. "\n]\n"
  if not utf8.len(text) then check.fail("save: %s: a tag is not UTF-8, which JSON needs", path) end
  files.write("save", path, text)
end

return M
