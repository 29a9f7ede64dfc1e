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

---Writes beside the old file and renames, so that a reader finds the old one or the new one. What is no
---regular file (a device, a pipe, a link) is written to as it stands.
---@param where string
---@param path string
---@param text string
function M.write(where, path, text)
  check.value(where, "argument 1", path, "string")
  local replaceable = require "piper.core".system.replaceable(path)
  local target = replaceable and path .. ".tmp" or path
  local file, why = io.open(target, "wb")
  if not file then check.fail("%s: %s", where, why) end
  local fine, problem = file:write(text)
  local closed, problem_closing = file:close()
  if replaceable and fine and closed then fine, problem = os.rename(target, path) end
  if not fine or not closed then
    if replaceable then os.remove(target) end
    check.fail("%s: %s: %s", where, path, problem or problem_closing)
  end
end

return M
