-- show - results that print as text: a table stays what it is (fields, #, ipairs, pairs) and gets a
-- metatable with __tostring.
--
--   local memory = show.form(function(t) return ... end)    once, for each kind of result
--   return memory(core:memory())
local core = require "piper.core"

local M = {}

---@param text fun(t: table): string
---@return fun(t: table): table  gives a table this text, and returns it
function M.form(text)
  local meta = { __tostring = text }
  return function(t) return setmetatable(t, meta) end
end

---Columns, two blanks apart: numbers to the right, the rest to the left.
---@param head string[]
---@param rows (string|number)[][]
---@return string
function M.columns(head, rows)
  local width, lines = {}, {}
  local all = table.move(rows, 1, #rows, 2, { head })
  for _, row in ipairs(all) do
    for i, cell in ipairs(row) do width[i] = math.max(width[i] or 0, #tostring(cell)) end
  end
  local first = rows[1] or head
  for k, row in ipairs(all) do
    local cells = {}
    for i, cell in ipairs(row) do
      local right = tostring(first[i]):find "^%-?%d" ~= nil
      cells[i] = ((right and "%%%ds" or "%%-%ds"):format(width[i])):format(cell)
    end
    lines[k] = table.concat(cells, "  "):gsub(" +$", "")
  end
  return table.concat(lines, "\n")
end

---A list of words under a title, broken into lines.
---@param title string
---@param words string[]
---@return string
function M.words(title, words)
  local lines, line = {}, title
  for i, word in ipairs(words) do
    local item = word .. (i < #words and "," or "")
    if #line + 1 + #item > 100 then
      lines[#lines + 1] = line
      line = " " .. item
    else
      line = line .. " " .. item
    end
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

---"name value  name value" of the fields that a record has, in this order.
---@param names string[]
---@return fun(t: table): string
function M.fields(names)
  return function(t)
    local parts = {}
    for _, name in ipairs(names) do
      local v = rawget(t, name)
      if math.type(v) == "float" then v = ("%.4g"):format(v) end
      if v ~= nil then parts[#parts + 1] = name .. " " .. tostring(v) end
    end
    return table.concat(parts, "  ")
  end
end

---Ranks of a table that is keyed by rank, ascending.
---@param t table
---@return integer[]
function M.ranks(t)
  local ranks = {}
  for rank in pairs(t) do ranks[#ranks + 1] = rank end
  table.sort(ranks)
  return ranks
end

---A list: { 0, 1 }.
M.list = M.form(function(t)
  local parts = {}
  for i, v in ipairs(t) do parts[i] = tostring(v) end
  return #parts > 0 and "{ " .. table.concat(parts, ", ") .. " }" or "{}"
end)

---A list of ranks: "0-3,6".
---@param list integer[]
---@return string
function M.ranges(list)
  local parts, i = {}, 1
  while i <= #list do
    local j = i
    while list[j + 1] == list[j] + 1 do j = j + 1 end
    parts[#parts + 1] = i == j and tostring(list[i]) or list[i] .. "-" .. list[j]
    i = j + 1
  end
  return table.concat(parts, ",")
end

local CATEGORIES = { "params", "grads", "optimizer", "activations", "comm", "workspace", "peak" }
local rank_memory = M.form(function(t)
  local parts = {}
  for i, name in ipairs(CATEGORIES) do parts[i] = name .. " " .. core.bytes(t[name]) end
  return table.concat(parts, "  ")
end)
local all_memory = M.form(function(t)
  local rows = {}
  for i, rank in ipairs(M.ranks(t)) do
    rows[i] = { rank }
    for k, name in ipairs(CATEGORIES) do rows[i][k + 1] = core.bytes(t[rank][name]) end
  end
  return M.columns(table.move(CATEGORIES, 1, #CATEGORIES, 2, { "rank" }), rows)
end)

---Bytes of each rank by category, as the table of print(plan).
function M.memory(t)
  for _, of_rank in pairs(t) do rank_memory(of_rank) end
  return all_memory(t)
end

---For each rank a number, called 'what'.
---@param what string
function M.by_rank(what)
  return M.form(function(t)
    local rows = {}
    for i, rank in ipairs(M.ranks(t)) do rows[i] = { rank, t[rank] } end
    return M.columns({ "rank", what }, rows)
  end)
end

---@param n integer
---@param one string
---@return string "1 call", "2 calls"
function M.count(n, one) return ("%d %s%s"):format(n, one, n == 1 and "" or "s") end

return M
