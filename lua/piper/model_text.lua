-- model_text - what print(model) shows.

-- 1234567 -> "1,234,567"
local function grouped(n)
  local text = tostring(n):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (text:gsub("^,", ""))
end

-- Rows of strings under a heading; columns that begin with a number on the right.
local function columns(rows, right)
  local width = {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do width[i] = math.max(width[i] or 0, #cell) end
  end
  local lines = {}
  for _, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local blanks = (" "):rep(width[i] - #cell) -- string.format pads to 99 at most
      cells[i] = right[i] and blanks .. cell or cell .. blanks
    end
    lines[#lines + 1] = "  " .. (table.concat(cells, "  "):gsub("%s+$", ""))
  end
  return table.concat(lines, "\n")
end

-- { "linear", "relu", "linear" } -> "2 linear, relu", in the order of first use
local function ops_text(ops)
  local order, count = {}, {}
  for _, op in ipairs(ops) do
    if not count[op] then order[#order + 1] = op end
    count[op] = (count[op] or 0) + 1
  end
  for i, op in ipairs(order) do
    if count[op] > 1 then order[i] = count[op] .. " " .. op end
  end
  return table.concat(order, ", ")
end

local function tags_text(tags)
  local texts = {}
  for i, t in ipairs(tags) do texts[i] = t.tag .. "=" .. t.index end
  return #texts > 0 and table.concat(texts, " ") or "-"
end

local function chunk_rows(chunks, list)
  local rows = { { "chunk", "scopes", "ops", "parameters", "backward", "line" } }
  for i, c in ipairs(chunks) do
    local elements = 0
    for _, p in ipairs(c.params) do elements = elements + list[p].elements end
    rows[#rows + 1] = {
      tostring(i), tags_text(c.tags), ops_text(c.ops), grouped(elements), c.has_backward and "yes" or "no", c.line,
    }
  end
  return rows
end

-- Chunks that use each parameter.
local function users(chunks)
  local used = {}
  for i, c in ipairs(chunks) do
    for _, p in ipairs(c.params) do
      used[p] = used[p] or {}
      table.insert(used[p], i)
    end
  end
  return used
end

local function note(p, chunks)
  local words = { table.concat(chunks, ", ") }
  if #chunks > 1 then words[1] = words[1] .. " (tied)" end
  if p.frozen then words[#words + 1] = "frozen" end
  if not p.frozen and not p.trained then words[#words + 1] = "no gradient reaches it" end
  return table.concat(words, ", ")
end

local function param_rows(list, chunks)
  local used = users(chunks)
  local rows = { { "parameter", "shape", "elements", "initial values", "chunks" } }
  for i, p in ipairs(list) do
    local init = p.init_arg and ("%s %s"):format(p.init, ("%.6g"):format(p.init_arg)) or p.init
    rows[#rows + 1] = { p.name, p.shape_text, grouped(p.elements), init, note(p, used[i] or {}) }
  end
  return rows
end

local function input_rows(inputs)
  local rows = { { "input", "shape", "type", "values" } }
  for _, i in ipairs(inputs) do
    local values = i.limit > 0 and ("0 to %d"):format(i.limit - 1) or ""
    rows[#rows + 1] = { i.name, i.shape_text, i.dtype, i.used and values or "unused" }
  end
  return rows
end

local function counts(model, chunks, list)
  local n_ops, elements, trained = 0, 0, 0
  for _, c in ipairs(chunks) do n_ops = n_ops + #c.ops end
  for _, p in ipairs(list) do
    elements = elements + p.elements
    if p.trained then trained = trained + p.elements end
  end
  local lines = {}
  for i, l in ipairs(model.graph:losses()) do lines[i] = l.line end
  return ('model "%s": %d chunk%s, %d op%s, %s parameters (%s trained), loss at %s'):format(model.name,
    #chunks, #chunks == 1 and "" or "s", n_ops, n_ops == 1 and "" or "s", grouped(elements),
    grouped(trained), table.concat(lines, ", "))
end

---@param model piper.Model
---@return string
return function(model)
  if require "piper.trace".is_current(model) then return ('model "%s", not complete yet'):format(model.name) end
  local chunks, list = model.graph:chunks(), model.graph:params()
  local parts = { counts(model, chunks, list), columns(input_rows(model.graph:inputs()), {}) }
  parts[#parts + 1] = columns(chunk_rows(chunks, list), { [4] = true })
  if #list > 0 then parts[#parts + 1] = columns(param_rows(list, chunks), { [3] = true }) end
  return table.concat(parts, "\n\n")
end
