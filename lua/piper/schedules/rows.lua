-- rows - a schedule as data: the actions of each rank, read from a list of directives or from text.
--
-- In text an action is <stage><pass><microbatch> (0F3; passes F, B, I, W, R) and an overlapped group
-- is (0F3+3B1); a rank is one line. plan:actions() and the files in tests/data/schedules are written so.
local check = require "piper.check"
local actions = require "piper.schedules.actions"

local M = {}

local LETTER = { F = "F", B = "B", BI = "I", BW = "W", R = "R" }
local PASS = { F = "F", B = "B", I = "BI", W = "BW", R = "R" }
M.PASS = PASS

---@class piper.Action
---@field stage integer
---@field mb integer
---@field pass "F"|"B"|"BI"|"BW"|"R"
---@field name string     "0F3"
---@field rank integer    the n-th order of the list, from 0
---@field column integer  the group's index in its order, from 1

---@class piper.Rows
---@field where string      the function, for messages
---@field microbatches integer
---@field [integer] piper.Action[][]  [r + 1]: the groups of rank r
---@field places piper.Directive[]
---@field cell fun(rank: integer, column?: integer): string  a position, as messages show it; without a column that of the row

local function cell(rank, column)
  return column and ("rank %d, column %d"):format(rank, column) or ("rank %d"):format(rank)
end

local function index(v) return math.type(v) == "integer" and v >= 0 end

local function action_of(rows, filter, rank, column)
  if type(filter) ~= "table" then
    check.fail("%s: %s: %s is not a filter such as { PP = 0, MB = 0, PASS = \"F\" }", rows.where, rows.cell(rank, column),
      check.show(filter))
  end
  local stage, mb, letter = filter.PP, filter.MB, LETTER[filter.PASS]
  if not index(stage) or not index(mb) or not letter then
    check.fail("%s: %s: %s does not name one PP, one MB and one PASS", rows.where, rows.cell(rank, column), check.show(filter))
  end
  return { stage = stage, mb = mb, pass = filter.PASS, name = stage .. letter .. mb, rank = rank, column = column }
end

---The members of a group, which is a filter or a list of filters.
function M.members(group) return group[1] ~= nil and group or { group } end

---Reads a list of directives, or a strategy.
---@param where string
---@param list piper.Directive[]|piper.Strategy
---@param cell_text? fun(rank: integer, column?: integer): string
---@return piper.Rows
function M.read(where, list, cell_text)
  if type(list) == "table" and getmetatable(list) == require "piper.strategy".Strategy then list = list.directives end
  check.value(where, "argument 1", list, "list")
  local rows = { where = where, cell = cell_text or cell, places = {} }
  local split
  for i, d in ipairs(list) do
    if type(d) ~= "table" then check.fail("%s: element %d is %s, not a directive", where, i, check.show(d)) end
    if d.op == "split" and (d.dim_name or "MB") == "MB" then split = d end
    if d.op == "place" then rows.places[#rows.places + 1] = d end
    if d.op == "order" then
      local rank, row = #rows, {}
      check.value(where, ("filters of rank %d's order"):format(rank), d.filters, "list")
      if #d.filters == 0 then check.fail("%s: rank %d's order is empty", where, rank) end
      rows[rank + 1] = row
      for column, group in ipairs(d.filters) do
        check.value(where, rows.cell(rank, column), group, "table")
        row[column] = {}
        for m, filter in ipairs(M.members(group)) do row[column][m] = action_of(rows, filter, rank, column) end
      end
    end
  end
  if not split then check.fail('%s: the list has no split with dim_name = "MB"', where) end
  if #rows == 0 then check.fail("%s: the list has no order", where) end
  check.value(where, "num_microbatches of split", split.num_microbatches, "integer>=1")
  rows.microbatches = split.num_microbatches
  return rows
end

---One line a rank.
---@param rows piper.Rows
---@return string
function M.text(rows)
  local lines = {}
  for r, row in ipairs(rows) do
    local words = {}
    for c, group in ipairs(row) do
      local names = {}
      for m, action in ipairs(group) do names[m] = action.name end
      words[c] = #names == 1 and names[1] or "(" .. table.concat(names, "+") .. ")"
    end
    lines[r] = table.concat(words, " ")
  end
  return table.concat(lines, "\n")
end

---The filter that an action's text names, or nil.
---@return piper.Filter?
function M.filter(text)
  local stage, letter, mb = text:match "^(%d%d?%d?%d?%d?%d?%d?%d?%d?)(%u)(%d%d?%d?%d?%d?%d?%d?%d?%d?)$"
  if not stage or not PASS[letter] then return nil end
  return { PP = math.tointeger(stage), MB = math.tointeger(mb), PASS = PASS[letter] }
end

---Reads a schedule from text, one line a rank; lines that are empty or start with # do not count.
---@param text string
---@param options? { devices?: integer[][]|false }  a device set for each rank (default rank r on device r)
---@return piper.Directive[]
function M.parse(text, options)
  check.value("parse", "argument 1", text, "string")
  options = check.options("parse", options or {}, { devices = "any?" })
  local rows = {}
  for line in text:gmatch "[^\r\n]+" do
    if line:find "%S" and not line:find "^%s*#" then
      local row = {}
      rows[#rows + 1] = row
      for word in line:gmatch "%S+" do
        local group = {}
        local inner = word:match "^%((.+)%)$"
        for part in ((inner or word) .. "+"):gmatch "(.-)%+" do group[#group + 1] = M.filter(part) or part end
        for _, f in ipairs(group) do
          if type(f) == "string" or #group == 1 and inner or #group > 1 and not inner then
            check.fail("parse: %s: %s is not an action such as 0F3 (F, B, I, W, R), nor a group such as (0F3+1B0)",
              cell(#rows - 1, #row + 1), check.show(word))
          end
        end
        row[#row + 1] = #group > 1 and group or group[1]
      end
    end
  end
  if #rows == 0 then check.fail "parse: the text has no line with actions" end
  return M.directives("parse", rows, options.devices)
end

-- Appends to 'list' the placement that rows of groups imply: a stage that several ranks share gets
-- one for each of them, with its microbatches.
local function place_as_rows(rows, devices, list)
  if not devices then return end
  local ranks = {} -- ranks[stage][rank][mb] = true
  for rank, row in ipairs(rows) do
    for _, group in ipairs(row) do
      for _, f in ipairs(M.members(group)) do
        local of = ranks[f.PP] or {}
        ranks[f.PP] = of
        of[rank] = of[rank] or {}
        of[rank][f.MB] = true
      end
    end
  end
  local stages = {}
  for stage in pairs(ranks) do stages[#stages + 1] = stage end
  table.sort(stages)
  for _, stage in ipairs(stages) do
    local on = {}
    for rank, mbs in pairs(ranks[stage]) do
      local sorted = {}
      for mb in pairs(mbs) do sorted[#sorted + 1] = mb end
      table.sort(sorted)
      on[#on + 1] = { rank = rank, mbs = sorted }
    end
    table.sort(on, function(a, b) return a.mbs[1] < b.mbs[1] or a.mbs[1] == b.mbs[1] and a.rank < b.rank end)
    for _, at in ipairs(on) do
      local filter = { PP = stage, MB = #on > 1 and at.mbs or nil }
      list[#list + 1] = { op = "place", filter = filter, devices = devices[at.rank] }
    end
  end
end

---The directives of a schedule whose rows say which rank runs what.
---@param where string
---@param rows (piper.Filter|piper.Filter[])[][]
---@param devices integer[][]|false|nil
---@return piper.Directive[]
function M.directives(where, rows, devices)
  local microbatches = 0
  for _, row in ipairs(rows) do
    for _, group in ipairs(row) do
      for _, f in ipairs(M.members(group)) do microbatches = math.max(microbatches, f.MB + 1) end
    end
  end
  local list = { { op = "split", filter = {}, dim_name = "MB", num_microbatches = microbatches } }
  place_as_rows(rows, actions.device_sets(where, devices, #rows), list)
  for _, row in ipairs(rows) do list[#list + 1] = { op = "order", filters = row } end
  return list
end

return M
