-- strategy_csv - PyTorch pipelining schedules: the compute actions of each rank on a line of its own,
-- as torch.distributed.pipelining writes and reads them.
--
--   0F0,0F1,,0I0,0W0,(0F2;3B0)OVERLAP_F_B
--
-- A cell is <stage><action><microbatch>, with F forward, B the fused backward pass, I and W its two
-- halves; a blank cell is idle time there and nothing here, since only the order counts.
local check = require "piper.check"
local files = require "piper.files"
local actions = require "piper.schedules.actions"
local rows_of = require "piper.schedules.rows"
local schedule_check = require "piper.schedules.check"

local M = {}

local COMMUNICATION = {
  SEND_F = true, RECV_F = true, SEND_B = true, RECV_B = true, UNSHARD = true, RESHARD = true, REDUCE_GRAD = true,
}

local function trim(text) return text:match "^%s*(.-)%s*$" end

-- The group of a cell's text, which is not blank.
local function group_of(where, text)
  local forward, backward = text:match "^%(%s*(%w+)%s*;%s*(%w+)%s*%)%s*OVERLAP_F_B$"
  local first = rows_of.filter(forward or text)
  local second = backward and rows_of.filter(backward)
  if forward and first and second and first.PASS == "F" and second.PASS == "B" then return { first, second } end
  local known = not forward and first and first.PASS ~= "R"
  if known then return first end
  if COMMUNICATION[text:match "^%d+([%u_]+)%d*$" or ""] then
    check.fail("%s: %s is communication, which Piper plans itself: read the schedule of compute actions", where, check.show(text))
  end
  check.fail("%s: %s is not an action such as 0F3 (F, B, I, W), nor a pair such as (0F3;1B0)OVERLAP_F_B", where, check.show(text))
end

-- The rows of a file: groups, and for messages the cell that each came from.
local function read_rows(where, text)
  local rows, cells, line, blank = {}, {}, 0, nil
  text = text:gsub("^\xEF\xBB\xBF", ""):gsub("\r\n?", "\n")
  for content in (text .. "\n"):gmatch "(.-)\n" do
    line = line + 1
    local row, columns, column = {}, {}, 0
    for cell in (content .. ","):gmatch "(.-)," do
      column = column + 1
      cell = trim(trim(cell):match '^"(.*)"$' or cell)
      if cell ~= "" then
        row[#row + 1] = group_of(("%s: row %d, column %d"):format(where, line, column), cell)
        columns[#columns + 1] = column
      end
    end
    if #row == 0 then
      blank = blank or line
    else
      if blank then check.fail("%s: row %d has no action: every rank has a row", where, blank) end
      rows[#rows + 1], cells[#cells + 1] = row, columns
    end
  end
  if #rows == 0 then check.fail("%s: has no actions", where) end
  return rows, cells
end

local RULES = { "single", "loop", "v", "bidirectional" }

-- The rank of each stage, as the placement that the user names says.
local function rank_function(placement, rows)
  if type(placement) == "table" then
    check.value("load_csv", 'field "placement"', placement, "list")
    return function(stage) return placement[stage + 1] end, "the list placement"
  end
  check.choice("load_csv", 'field "placement"', placement, RULES)
  local n = { ranks = #rows, microbatches = rows.microbatches, half = (rows.microbatches + 1) // 2 }
  local rule = actions.placements[placement].rank
  return function(stage, mb) return rule(stage, n, mb) end, ("placement %q"):format(placement)
end

local function check_placement(rows, placement)
  local rank_of, name = rank_function(placement, rows)
  for _, row in ipairs(rows) do
    for _, group in ipairs(row) do
      for _, a in ipairs(group) do
        local rank = rank_of(a.stage, a.mb)
        if rank ~= a.rank then
          local right = math.type(rank) == "integer" and rank >= 0 and rank < #rows
          check.fail("%s: %s: %s is on rank %d, but %s puts stage %d %s", rows.where, rows.cell(a.rank, a.column), a.name,
            a.rank, name, a.stage, right and ("on rank %d"):format(rank) or "on no rank of the file")
        end
      end
    end
  end
end

---Reads a schedule; see piper.strategy.load_csv.
---@param path string
---@param options? { placement?: string|integer[], devices?: integer[][]|false }
---@return piper.Strategy
function M.load(path, options)
  options = check.options("load_csv", options or {}, { placement = "string|table?", devices = "any?" })
  local where = "load_csv: " .. check.value("load_csv", "argument 1", path, "string")
  local groups, cells = read_rows(where, files.read("load_csv", path))
  local list = rows_of.directives("load_csv", groups, options.devices)
  local rows = rows_of.read(where, list, function(rank, column)
    if not column then return ("row %d"):format(rank + 1) end
    return ("row %d, column %d"):format(rank + 1, cells[rank + 1][column])
  end)
  rows.places = {} -- they follow from the rows
  if options.placement then check_placement(rows, options.placement) end
  schedule_check.rows(rows)
  return require "piper.strategy".new():add(list)
end

---Writes the orders of a strategy.
---@param strategy piper.Strategy
---@param path string
function M.save(strategy, path)
  local lines = {}
  local rows = rows_of.read("save_csv", strategy)
  for r, row in ipairs(rows) do
    local cells = {}
    for c, group in ipairs(row) do
      local pair = #group == 2 and group[1].pass == "F" and group[2].pass == "B"
      if #group > 1 and not pair or group[1].pass == "R" then
        check.fail("save_csv: %s: PyTorch's schedules have F, B, I, W and pairs of an F and a B; this is %s", rows.cell(r - 1, c),
          rows_of.text { { group } })
      end
      cells[c] = pair and ("(%s;%s)OVERLAP_F_B"):format(group[1].name, group[2].name) or group[1].name
    end
    lines[r] = table.concat(cells, ",") .. "\n"
  end
  files.write("save_csv", path, table.concat(lines))
end

return M
