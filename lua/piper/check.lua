-- check - errors that name the user's line, and options that are checked against a declared list.
--
-- The user's line is that of the first stack frame outside the library (its chunks are named
-- "[piper]/..."), however deep in it the mistake is noticed.
local core = require "piper.core"

local M = {}

---Raises "file:line: message", the position being the user's.
---@param fmt string as in string.format, which is applied only if there are more arguments
function M.fail(fmt, ...)
  core.fail(select("#", ...) > 0 and fmt:format(...) or fmt)
end

---@return string position the user's "file:line", or "?" outside every script
function M.here()
  return core.here()
end

local function sorted_keys(t)
  local keys = {}
  for k in pairs(t) do keys[#keys + 1] = k end
  table.sort(keys, function(a, b)
    local ta, tb = type(a), type(b)
    if ta ~= tb then return ta < tb end
    if ta == "number" or ta == "string" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end

-- Cut where it is long; without control characters and bytes that are not UTF-8.
local function printable(s)
  local text = s:sub(1, 64):gsub("%c", "?")
  local n, bad = utf8.len(text)
  while not n do
    text = text:sub(1, bad - 1) .. "?" .. text:sub(bad + 1)
    n, bad = utf8.len(text, bad + 1)
  end
  return #s > 60 and text:sub(1, utf8.offset(text, 0, 58) - 1) .. "..." or text
end

local SHOWN = 8 -- elements of a table

---A value as a message shows it: "x", { PP = 0, MB = { 0, 1 } }; keys sorted, long ones cut.
---@return string
function M.show(v, depth)
  depth = depth or 3
  local kind = type(v)
  if kind == "string" then
    return '"' .. printable(v) .. '"'
  elseif v ~= v then
    return "nan" -- whatever its sign
  elseif kind ~= "table" then
    return kind == "function" and "a function" or tostring(v)
  end
  local meta = getmetatable(v) -- whatever a __metatable of the user's says
  if type(meta) == "table" and meta.__tostring then return (tostring(v):match("[^\n]*"):gsub("%c", "?")) end
  if next(v) == nil then return "{}" end
  if depth == 0 then return "{...}" end
  local parts, n = {}, rawlen(v)
  for i = 1, math.min(n, SHOWN + 1) do parts[i] = M.show(rawget(v, i), depth - 1) end
  for _, k in ipairs(n <= SHOWN and sorted_keys(v) or {}) do
    if #parts > SHOWN then break end
    if math.type(k) ~= "integer" or k < 1 or k > n then
      local name = type(k) == "string" and k:find "^[%a_][%w_]*$" and k or "[" .. M.show(k, 0) .. "]"
      parts[#parts + 1] = name .. " = " .. M.show(rawget(v, k), depth - 1)
    end
  end
  if #parts > SHOWN then parts[SHOWN + 1] = "..." end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

---The candidate nearest to 'name', if one is near enough.
---@param name any
---@param candidates string[]
---@return string?
function M.nearest(name, candidates)
  return type(name) == "string" and core.nearest(name, candidates) or nil
end

---The words that end a message about an unknown name: ' (did you mean "devices"?)', or the list
---of what there is ("fields: a, b").
---@param what string plural of what is listed
---@return string
function M.suggestion(name, candidates, what)
  local near = M.nearest(name, candidates)
  if near then return (' (did you mean "%s"?)'):format(near) end
  return #candidates > 0 and (" (%s: %s)"):format(what, table.concat(candidates, ", ")) or ""
end

local function public_names(t)
  local names = {}
  for k in pairs(t) do
    if type(k) == "string" and not k:find "^_" then names[#names + 1] = k end
  end
  table.sort(names)
  return names
end

---Makes asking a module for a name that it does not have an error, with the nearest name there is.
---@param t table
---@param where string such as "nn"
---@return table t itself
function M.strict(t, where)
  local meta = getmetatable(t) or {}
  meta.__index = function(_, name)
    if type(name) == "string" and name:find "^_" then return nil end
    M.fail("%s: there is no %s%s", where, M.show(name), M.suggestion(name, public_names(t), "there are"))
  end
  meta.__tostring = meta.__tostring or function() return require "piper.show".words(where .. ":", public_names(t)) end
  return setmetatable(t, meta)
end

local methods = {} -- of sealed classes

---Is it a function that scripts call: one of piper.*, or a method of its objects? For messages only.
---@return boolean
function M.is_public(fn)
  local seen = {}
  local function holds(t, depth)
    if type(t) ~= "table" or seen[t] or depth == 0 then return false end
    seen[t] = true
    for _, v in next, t do
      if v == fn or holds(v, depth - 1) then return true end
    end
    local meta = getmetatable(t)
    return type(meta) == "table" and rawget(meta, "__call") == fn
  end
  return methods[fn] or holds(package.loaded.piper, 3)
end

-- Passes results on: what calls it is not left by a tail call, and so keeps its place on the stack.
local function same(...) return ... end

---Seals a class once its methods are written: its objects have no other names, and a method that is
---called with "." instead of ":" says so.
---@param class table
---@param object string what messages call an object, such as "run"
function M.seal(class, object)
  for _, name in ipairs(public_names(class)) do
    local method = class[name]
    class[name] = function(self, ...)
      if getmetatable(self) ~= class then
        M.fail("%s: this is a method; it is called with a colon: %s:%s(...)", name, object, name)
      end
      return same(method(self, ...))
    end
    methods[class[name]] = true
  end
  M.strict(class, object)
end

---Is it a userdata of the core, such as a "piper.Data"?
---@return boolean
function M.is_core(v, name)
  local meta = type(v) == "userdata" and getmetatable(v)
  return type(meta) == "table" and meta.__name == name
end

local ARTICLE = {
  string = "a string", number = "a number", integer = "a whole number", boolean = "true or false",
  table = "a table", list = "a list", ["function"] = "a function", any = "any value", ["nil"] = "nil",
}

local function is_list(v)
  if type(v) ~= "table" then return false end
  local n = 0
  for _ in pairs(v) do n = n + 1 end
  return n == #v
end

local function is_kind(v, kind)
  if kind == "any" then return v ~= nil end
  if kind == "list" then return is_list(v) end
  if kind == "integer" then return type(v) == "number" and math.tointeger(v) ~= nil end
  if kind == "number" then return type(v) == "number" and v - v == 0 end -- neither nan nor infinite
  return type(v) == kind
end

-- One alternative of a type: "integer>=1", "number>0", "string", "list".
local function matches(v, alternative)
  local kind, op, bound = alternative:match "^(%a+)([<>]=?)(.+)$"
  kind = kind or alternative
  assert(ARTICLE[kind], "check: no type is called " .. kind)
  if not is_kind(v, kind) then return false end
  bound = tonumber(bound)
  if op == ">=" then return v >= bound end
  if op == ">" then return v > bound end
  if op == "<=" then return v <= bound end
  if op == "<" then return v < bound end
  return true
end

local WORDS = { [">="] = " of at least ", [">"] = " above ", ["<="] = " of at most ", ["<"] = " below " }

local function describe(declared)
  local words = {}
  for alternative in declared:gmatch "[^|]+" do
    local kind, op, bound = alternative:match "^(%a+)([<>]=?)(.+)$"
    words[#words + 1] = kind and ARTICLE[kind] .. WORDS[op] .. bound or ARTICLE[alternative]
  end
  return table.concat(words, " or ")
end

local function is_declared(v, declared)
  for alternative in declared:gmatch "[^|]+" do
    if matches(v, alternative) then return true end
  end
  return false
end

---Checks one value; 'what' is how the message names it (a function that says it, where that takes
---work), 'declared' a type as in check.options.
---@generic T
---@param where string the function's name
---@param what string|fun(): string such as 'argument 1 (name)'
---@param v T
---@param declared string
---@return T
function M.value(where, what, v, declared)
  local optional = declared:sub(-1) == "?"
  if optional then declared = declared:sub(1, -2) end
  if v == nil and optional or v ~= nil and is_declared(v, declared) then return v end
  if type(what) == "function" then what = what() end
  if v == nil then M.fail("%s: %s is missing: it is %s", where, what, describe(declared)) end
  M.fail("%s: %s is %s, not %s", where, what, M.show(v), describe(declared))
end

---Checks an options table. 'declared' maps each field to its type: "string", "number", "integer",
---"boolean", "table", "list" (keys 1 to n), "function" or "any"; alternatives with "|", bounds of
---numbers as in "integer>=1" or "number>0", and a final "?" where the field may be absent.
---@generic T: table
---@param where string the function's name, as the message shows it
---@param spec T
---@param declared table<string, string>
---@return T spec itself
function M.options(where, spec, declared)
  if type(spec) ~= "table" then
    M.fail("%s: expects a table of options, not %s", where, M.show(spec))
  end
  local fields = sorted_keys(declared)
  for _, k in ipairs(sorted_keys(spec)) do
    if declared[k] == nil then
      M.fail("%s: unknown field %s%s", where, M.show(k), M.suggestion(k, fields, "fields"))
    end
  end
  for _, k in ipairs(fields) do
    M.value(where, ('field "%s"'):format(k), spec[k], declared[k])
  end
  return spec
end

---One of a few words; 'what' as in check.value.
---@param choices string[]
---@return string
function M.choice(where, what, v, choices)
  for _, c in ipairs(choices) do
    if v == c then return v end
  end
  local near = M.nearest(v, choices)
  if type(what) == "function" then what = what() end
  if v == nil then M.fail('%s: %s is missing: it is one of "%s"', where, what, table.concat(choices, '", "')) end
  M.fail('%s: %s is %s, not one of "%s"%s', where, what, M.show(v), table.concat(choices, '", "'),
    near and (' (did you mean "%s"?)'):format(near) or "")
end

return M
