-- schedule_table.lua - the reference schedules of tests/data/schedules (README.md there).
local M = {}

local dir = os.getenv "srcdir" .. "/tests/data/schedules/"

-- The builders whose tables are exact, by the tables' names for them.
M.builders = {
  gpipe = "gpipe", ["1f1b"] = "one_f_one_b", interleaved1f1b = "interleaved_one_f_one_b", loopedbfs = "looped_bfs",
  zbh1 = "zb_h1", zbh2 = "zb_h2", interleavedzb = "interleaved_zero_bubble", zbv = "zbv", dualpipe = "dualpipe",
  dualpipev = "dualpipev",
}

local function cells(line)
  local list = {}
  for cell in (line .. ","):gmatch "(.-)," do list[#list + 1] = cell end
  return list
end

-- The rows of metrics.csv, in order: fields by name, 'ranks', 'microbatches' and 'stages' as numbers,
-- 'text' the table's lines of actions.
function M.all()
  local all, head = {}, nil
  for line in io.lines(dir .. "metrics.csv") do
    local fields = cells(line)
    if not head then
      head = fields
    else
      local row = {}
      for i, name in ipairs(head) do row[name] = fields[i] end
      for _, name in ipairs { "ranks", "microbatches", "stages" } do row[name] = math.tointeger(row[name]) end
      local lines = {}
      for text in io.lines(dir .. row.file) do
        if text:sub(1, 1) ~= "#" then lines[#lines + 1] = text end
      end
      row.text = table.concat(lines, "\n")
      all[#all + 1] = row
    end
  end
  return all
end

-- The builder's schedule for a row; nil where the table comes from a search.
function M.build(schedules, row, devices)
  local name = M.builders[row.schedule]
  return name and schedules[name] {
    ranks = row.ranks, microbatches = row.microbatches, devices = devices,
    stages_per_rank = row.placement == "loop" and row.stages // row.ranks or nil,
  }
end

return M
