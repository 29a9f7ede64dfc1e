-- data - where the samples of a run come from.
local check = require "piper.check"
local core = require "piper.core"

local M = {}

---@class piper.Data : userdata

---Bytes of text files, one after the other, as the inputs "tokens" and "targets" (i32, context
---values a sample): a target is the next byte. Windows of the text are visited in a new order each
---epoch, drawn from the run's seed.
---@param paths string|string[]
---@param spec { context: integer }
---@return piper.Data
function M.text(paths, spec)
  if type(paths) == "string" then paths = { paths } end
  check.value("data.text", "argument 1", paths, "list")
  if #paths == 0 then check.fail "data.text: the list of files is empty" end
  for i, path in ipairs(paths) do
    check.value("data.text", ("file %d of the list"):format(i), path, "string")
  end
  check.options("data.text", spec, { context = "integer>=1" })
  if spec.context > 1 << 30 then check.fail("data.text: context = %d is too large", spec.context) end
  local available = require "piper.available"()
  return core.data.text(paths, spec.context, available and available // 2)
end

---A flat file of token ids, little-endian and unsigned, as the inputs "tokens" and "targets" (i32, context
---values a sample): a target is the next id. Windows are visited as by data.text, so a file with the bytes
---of a text as ids gives the same samples. The file may be larger than memory: what a step needs is read
---when it needs it.
---@param path string
---@param spec { width: 16|32, context: integer } width: bits of an id
---@return piper.Data
function M.tokens(path, spec)
  check.value("data.tokens", "argument 1 (path)", path, "string")
  check.options("data.tokens", spec, { width = "integer", context = "integer>=1" })
  if spec.width ~= 16 and spec.width ~= 32 then
    check.fail("data.tokens: width is %d: ids have 16 or 32 bits", spec.width)
  end
  if spec.context > 1 << 30 then check.fail("data.tokens: context = %d is too large", spec.context) end
  return core.data.tokens(path, spec.width, spec.context)
end

local DEEPEST = 100 -- lists in lists: more is a table in itself

-- Appends the numbers in a row (a number, or nested lists of numbers) to 'flat'.
local function flatten(row, flat, where, depth)
  if type(row) == "number" then
    flat[#flat + 1] = row
  elseif type(row) == "table" then
    check.value("data.table", where, row, "list")
    if depth == DEEPEST then check.fail("data.table: %s has lists nested deeper than %d", where, DEEPEST) end
    for _, v in ipairs(row) do flatten(v, flat, where, depth + 1) end
  else
    check.fail("data.table: %s is %s, not a number or a list of numbers", where, check.show(row))
  end
end

---Samples given in full: for each input a list of samples, each a number or a (nested) list of
---numbers. Used in order and from the start again.
---@param inputs table<string, (number|table)[]>
---@return piper.Data
function M.table(inputs)
  check.value("data.table", "argument 1", inputs, "table")
  local names, n = {}, nil
  for name in pairs(inputs) do
    check.value("data.table", "an input's name", name, "string")
    names[#names + 1] = name
  end
  table.sort(names)
  if #names == 0 then check.fail "data.table: there are no inputs" end
  for _, name in ipairs(names) do
    local rows = check.value("data.table", ("input %q"):format(name), inputs[name], "list")
    n = n or #rows
    if #rows ~= n then
      check.fail("data.table: input %q has %d samples, input %q has %d", name, #rows, names[1], n)
    end
  end
  if n == 0 then check.fail "data.table: there are no samples" end
  local flats = {}
  for _, name in ipairs(names) do
    local flat = {}
    for i, row in ipairs(inputs[name]) do
      local before = #flat
      flatten(row, flat, ("sample %d of %q"):format(i, name), 0)
      if i > 1 and (#flat - before) * (i - 1) ~= before then
        check.fail("data.table: sample %d of %q has %d values, the ones before it %d", i, name, #flat - before,
          before // (i - 1))
      end
    end
    if #flat == 0 then check.fail("data.table: the samples of %q have no values", name) end
    flats[name] = flat
  end
  local data = core.data.table(n)
  for _, name in ipairs(names) do data:add(name, flats[name], #flats[name] // n) end
  return data
end

return check.strict(M, "data")
