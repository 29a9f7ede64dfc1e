-- dag_diff.lua - what has changed between two lists of plan:dag, as doc/directives.md shows it: lines that
-- stay with "  ", that go with "- ", that come with "+ ". What computes the norm and the metrics is left out.
local M = {}

-- { name, devices, stream, sources } of each line; columns are two blanks apart.
local function rows_of(list)
  local rows = {}
  for line in (list .. "\n"):gmatch "([^\n]*)\n" do
    local head, sources = line:match "^(.-) +(<%- .*)$"
    local name, devices, stream = ((head or line) .. "  "):match "^(.-)  +(%S+)  +(%S*)"
    if not name then name, devices, stream = ((head or line) .. "  "):match "^(.-)  ", "", "" end
    if not name:find "^norm " and name ~= "all_reduce metrics" then rows[#rows + 1] = { name, devices, stream, sources or "" } end
  end
  return rows
end

local function same(a, b) return table.concat(a, "\0") == table.concat(b, "\0") end

-- The longest common run of names, as the usual table: best[i][j] of what follows i and j.
local function table_of(a, b)
  local best = {}
  for i = #a + 1, 1, -1 do
    best[i] = {}
    for j = #b + 1, 1, -1 do
      if i > #a or j > #b then best[i][j] = 0
      elseif a[i][1] == b[j][1] then best[i][j] = best[i + 1][j + 1] + 1
      else best[i][j] = math.max(best[i + 1][j], best[i][j + 1]) end
    end
  end
  return best
end

---@param before string a list of plan:dag
---@param after string
---@return string
function M.diff(before, after)
  local a, b = rows_of(before), rows_of(after)
  local best, out, i, j = table_of(a, b), {}, 1, 1
  local function put(sign, row) out[#out + 1] = { sign, row } end
  while i <= #a or j <= #b do
    if i <= #a and j <= #b and a[i][1] == b[j][1] then
      if same(a[i], b[j]) then
        put(" ", a[i])
      else
        put("-", a[i])
        put("+", b[j])
      end
      i, j = i + 1, j + 1
    elseif j > #b or i <= #a and best[i + 1][j] >= best[i][j + 1] then
      put("-", a[i])
      i = i + 1
    else
      put("+", b[j])
      j = j + 1
    end
  end
  local wide = { 0, 0, 0 }
  for _, line in ipairs(out) do
    for c = 1, 3 do wide[c] = math.max(wide[c], #line[2][c]) end
  end
  local lines = {}
  for k, line in ipairs(out) do
    local text = line[1] .. " "
    for c = 1, 3 do
      if wide[c] > 0 then text = text .. line[2][c] .. (" "):rep(wide[c] - #line[2][c] + 2) end
    end
    lines[k] = (text .. line[2][4]):gsub(" +$", "")
  end
  return table.concat(lines, "\n")
end

return M
