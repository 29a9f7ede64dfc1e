-- files - small text files, whole.
local check = require "piper.check"

local M = {}

local MAX_BYTES <const> = 64 << 20

---@param where string the function's name, which begins messages
---@param path string
---@return string
function M.read(where, path)
  check.value(where, "argument 1", path, "string")
  local file, why = io.open(path, "rb")
  if not file then check.fail("%s: %s", where, why) end
  local text, problem = file:read(MAX_BYTES + 1)
  file:close()
  if not text and problem then check.fail("%s: %s: %s", where, path, problem) end
  if text and #text > MAX_BYTES then check.fail("%s: %s: more than %d MiB", where, path, MAX_BYTES >> 20) end
  return text or ""
end

---Writes beside the old file and renames, so that a reader finds the old one or the new one.
---@param where string
---@param path string
---@param text string
function M.write(where, path, text)
  check.value(where, "argument 1", path, "string")
  local beside = path .. ".tmp"
  local file, why = io.open(beside, "wb")
  if not file then check.fail("%s: %s", where, why) end
  local fine, problem = file:write(text)
  local closed, problem_closing = file:close()
  if fine and closed then fine, problem = os.rename(beside, path) end
  if not fine or not closed then
    os.remove(beside)
    check.fail("%s: %s: %s", where, path, problem or problem_closing)
  end
end

return M
